// Draws the dataset from which each position of a mixture is read.
//
// The dataset of position i is drawn by weight: a keyed hash of i is compared with the cumulative
// weights. So a draw is a pure function of the weights, the key and i, on every machine and in
// every process. Each dataset has its own order: position i reads record n of its dataset, where n
// is the number of earlier positions with this dataset. To find n, the draws are repeated from the
// last mark. There is a mark every kMarkEvery positions.

#ifndef CACHECD_CORE_DRAWS_H_
#define CACHECD_CORE_DRAWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachecd {

// Immutable, so thread-safe.
class Draws {
 public:
  // The last of the cumulative weights.
  static constexpr uint64_t kWhole = uint64_t{1} << 62;

  // Throws std::invalid_argument if `bounds` does not ascend to kWhole.
  Draws(std::vector<uint64_t> bounds, uint64_t key, uint64_t positions);

  uint64_t num_positions() const { return positions_; }

  // Returns the dataset of a position.
  size_t operator[](uint64_t position) const;

  // A position, and per dataset the number of earlier positions that drew it.
  struct Cursor {
    uint64_t position = 0;
    std::vector<uint64_t> before = {};
  };

  // Fast if `position` is shortly after the cursor. `position` may be num_positions().
  void MoveTo(uint64_t position, Cursor* cursor) const;
  Cursor At(uint64_t position) const;

  // Returns the number of positions after which one of the datasets has no records left.
  static uint64_t Length(std::vector<uint64_t> bounds, uint64_t key,
                         const std::vector<uint64_t>& records);

 private:
  static constexpr uint64_t kMarkEvery = 1024;

  // Repeats the draws from the cursor to `position`.
  void Count(uint64_t position, Cursor* cursor) const;

  std::vector<uint64_t> bounds_;
  uint64_t base_;
  uint64_t positions_;
  std::vector<uint64_t> marks_;  // per mark, the counts of all datasets before it
};

}  // namespace cachecd

#endif  // CACHECD_CORE_DRAWS_H_
