// The order in which the records of several files are read.
//
// A pure function of the files' records and bytes, the seed and the window; so it is the same on
// every machine and in every process, and any position of it is found in O(log files).
//
// Unshuffled, it is the files' own. Shuffled within a window that holds the whole set, it is
// Permutation(records, seed). A larger set is shuffled by whole files and within a sliding window:
// the files, in an order of their own, are cut into blocks of a third of the window each, and two
// shuffles follow one another, one within each block and one within each stretch from the middle of
// a block to the middle of the next. So a record moves by up to two blocks, what is read at any
// time lies in two adjacent blocks, and the third of the window is left for the one to come.
//
// An order may be of slices of files, in stages that follow one another, each an order by itself:
// the first with the seed, the others with seeds that follow from it. In a mixture each dataset has
// such an order, with a seed and a window of its own, and Draws says which of them comes next.

#ifndef CACHECD_CORE_ORDER_H_
#define CACHECD_CORE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "permutation.h"

namespace cachecd {

// Records `first` to `first` + `count` of a file, as numbered by the caller.
struct Slice {
  uint32_t file;
  uint64_t first;
  uint64_t count;
};

using Stage = std::vector<Slice>;

// Several datasets, each with its stages, of which the next record is drawn by weight; see Draws.
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
  uint64_t window = 0;                  // bytes of files that may be read from at a time; 0: all
  std::vector<Stage> stages = {};       // none: one of all files
  std::optional<Mixture> mixture = {};  // in place of stages
};

struct FileExtent {
  uint64_t records;
  uint64_t bytes;
};

// Immutable, so thread-safe.
class RecordOrder {
 public:
  // std::invalid_argument for a slice of what is not there.
  RecordOrder(const std::vector<FileExtent>& files, const std::vector<Stage>& stages, bool shuffle,
              uint64_t seed, uint64_t window);

  // One for each dataset of a mixture, otherwise one.
  static std::vector<RecordOrder> All(const std::vector<FileExtent>& files, const Order& order);

  uint64_t num_records() const { return starts_.back(); }
  uint64_t num_bytes() const { return num_bytes_; }  // of the files of its largest stage

  struct Place {
    uint32_t block;
    uint32_t slot;   // its place among Files(block)
    uint32_t file;   // as numbered by the caller
    uint64_t index;  // of the record within the file
  };

  // What is read at `position`, below num_records().
  Place operator[](uint64_t position) const;

  size_t num_blocks() const { return blocks_.size(); }

  // The file of each of the block's slices, as numbered by the caller.
  std::vector<uint32_t> Files(size_t block) const;

  // The last block that positions up to this one are read from.
  size_t LastBlock(uint64_t position) const;

 private:
  struct Block {
    size_t first_slice;
    size_t end_slice;
    uint64_t begin;  // its records', in the order of slices_
    uint64_t end;
    Permutation within;
    // Over the records from the middle of the block before to the middle of this one.
    uint64_t stretch;
    Permutation across;
  };

  // Of one stage.
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
  std::vector<Slice> slices_;     // in the order of their blocks
  std::vector<uint64_t> starts_;  // starts_[i]: records before slices_[i]; and the total
  std::vector<Block> blocks_;     // each has records
};

}  // namespace cachecd

#endif  // CACHECD_CORE_ORDER_H_
