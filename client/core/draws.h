// Which of several datasets each position of a mixture is read from.
//
// Position i is drawn by weight: a keyed hash of i is compared with the cumulative weights. So a
// draw is a pure function of the weights, the key and i, on every machine and in every process. The
// records of a dataset come in its own order: at position i its next one, after as many as were
// drawn of it before i. To find that number the draws before i are repeated, from the last of the
// marks on that are set every kMarkEvery positions.

#ifndef CACHECD_CORE_DRAWS_H_
#define CACHECD_CORE_DRAWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachecd {

// Immutable, so thread-safe.
class Draws {
 public:
  // The cumulative weights of the datasets, ascending, are of this whole, which is the last.
  static constexpr uint64_t kWhole = uint64_t{1} << 62;

  // std::invalid_argument for other bounds.
  Draws(std::vector<uint64_t> bounds, uint64_t key, uint64_t positions);

  uint64_t num_positions() const { return positions_; }

  // The dataset of a position.
  size_t operator[](uint64_t position) const;

  // A position, and how many of the positions before it were drawn of each dataset.
  struct Cursor {
    uint64_t position = 0;
    std::vector<uint64_t> before = {};
  };

  // Fast for positions a little behind the cursor's. `position` may be num_positions().
  void MoveTo(uint64_t position, Cursor* cursor) const;
  Cursor At(uint64_t position) const;

  // How many positions there are until one dataset has been drawn as often as it has `records`.
  static uint64_t Length(std::vector<uint64_t> bounds, uint64_t key,
                         const std::vector<uint64_t>& records);

 private:
  static constexpr uint64_t kMarkEvery = 1024;

  // Repeats the draws from the cursor to a position.
  void Count(uint64_t position, Cursor* cursor) const;

  std::vector<uint64_t> bounds_;
  uint64_t base_;
  uint64_t positions_;
  std::vector<uint64_t> marks_;  // the counts before each kMarkEvery-th position, one after another
};

}  // namespace cachecd

#endif  // CACHECD_CORE_DRAWS_H_
