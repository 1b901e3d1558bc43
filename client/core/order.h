// The order in which the records of several files are read.
//
// The order is a pure function of the files' records and bytes, the seed and the window. So it is
// the same on every machine and in every process. A position is found in O(log files).
// Without shuffling, records have the order of the files. If the window holds the whole set, the
// shuffled order is Permutation(records, seed). A larger set is shuffled by whole files and within
// a sliding window: the files are permuted and cut into blocks, each a third of the window. Two
// shuffles follow: within each block, and within each stretch from the middle of a block to the
// middle of the next block. So a record moves by up to two blocks, and all reads at a time are in
// two adjacent blocks. The rest of the window is free for the next block.
// An order may consist of slices of files, in consecutive stages. Each stage is an order of its
// own: the first stage has the seed, and later stages have seeds derived from it. In a mixture,
// each dataset has such an order, with its own seed and window, and Draws selects the dataset of
// each position.

#ifndef CACHECD_CORE_ORDER_H_
#define CACHECD_CORE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "permutation.h"

namespace cachecd {

// Records [first, first + count) of a file. The caller numbers the files.
struct Slice {
  uint32_t file;
  uint64_t first;
  uint64_t count;
};

using Stage = std::vector<Slice>;

// Several datasets with their stages. The dataset of the next record is drawn by weight; see Draws.
struct Mixture {
  struct Part {
    uint64_t window;
    std::vector<Stage> stages;
  };

  std::vector<uint64_t> bounds;
  uint64_t key;
  uint64_t positions;
  std::vector<Part> parts;
};

struct Order {
  uint64_t seed = 0;
  bool shuffle = true;
  uint64_t rank = 0;
  uint64_t world = 1;
  uint64_t window = 0;                  // bytes of files that may be open at a time; 0: all
  std::vector<Stage> stages = {};       // empty: one stage of all files
  std::optional<Mixture> mixture = {};  // replaces `stages`
};

struct FileExtent {
  uint64_t records;
  uint64_t bytes;
};

// Immutable, so thread-safe.
class RecordOrder {
 public:
  // Throws std::invalid_argument if a slice is not in the files.
  RecordOrder(const std::vector<FileExtent>& files, const std::vector<Stage>& stages, bool shuffle,
              uint64_t seed, uint64_t window);

  // Returns one order for each dataset of a mixture, otherwise one order.
  static std::vector<RecordOrder> All(const std::vector<FileExtent>& files, const Order& order);

  uint64_t num_records() const { return starts_.back(); }
  uint64_t num_bytes() const { return num_bytes_; }  // of the files in the largest stage

  struct Place {
    uint32_t block;
    uint32_t slot;   // index in Files(block)
    uint32_t file;   // the caller's number
    uint64_t index;  // of the record in the file
  };

  // Returns the record at `position`, which must be below num_records().
  Place operator[](uint64_t position) const;

  size_t num_blocks() const { return blocks_.size(); }

  // Returns the file of each slice of the block, by the caller's numbers.
  std::vector<uint32_t> Files(size_t block) const;

  // Returns the last block from which a position up to `position` is read.
  size_t LastBlock(uint64_t position) const;

 private:
  struct Block {
    size_t first_slice;
    size_t end_slice;
    uint64_t begin;  // its records are [begin, end), in the order of slices_
    uint64_t end;
    Permutation within;
    // The stretch: from the middle of the block before to the middle of this block.
    uint64_t stretch;
    Permutation across;
  };

  // The seed, the blocks and the records of one stage.
  struct Span {
    uint64_t seed;
    size_t first_block;
    uint64_t begin;
    uint64_t end;
  };

  void AddStage(const std::vector<FileExtent>& files, const Stage& slices, uint64_t seed,
                uint64_t window);
  void AddBlock(const Span& stage, size_t first_slice, size_t end_slice);

  const bool shuffle_;
  uint64_t num_bytes_ = 0;
  std::vector<Slice> slices_;     // in the order of the blocks
  std::vector<uint64_t> starts_;  // starts_[i]: records before slices_[i]; last: the total
  std::vector<Block> blocks_;     // none is empty
};

}  // namespace cachecd

#endif  // CACHECD_CORE_ORDER_H_
