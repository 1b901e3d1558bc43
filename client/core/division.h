// How a set's records are divided into steps, and each step's records among the ranks.
//
// Of N records rank r of `world` has the positions r, r + world, ... of their order. All ranks take
// as many steps, each `batch_size` records of every rank, but for the last. A pure function, so
// every rank, process and machine divides alike, and a pass is resumed at any batch.

#ifndef CACHECD_CORE_DIVISION_H_
#define CACHECD_CORE_DIVISION_H_

#include <cstdint>
#include <optional>

namespace cachecd {

// What becomes of the records that do not fill a batch on every rank.
enum class Last {
  kDropped,
  // Each comes once, in a last batch that is short, with numbers of rows that differ by at most one
  // between ranks. A rank that has none left takes the last row of its batch before, and where its
  // records are fewer still, as on a node with a smaller set, one row of each batch before that: no
  // batch is empty.
  kShort,
  // Each comes once, and the last batch is filled up with rows that are no records.
  kPadded,
};

class Division {
 public:
  // Records of the nodes that have the fewest and the most, where nodes with sets of their own take
  // the same number of steps.
  struct Nodes {
    uint64_t least;
    uint64_t most;
  };

  // `world` and `batch_size` are not 0. With kShort std::invalid_argument, on every rank of every
  // node alike, if some rank would have no record for one of its batches.
  Division(uint64_t records, uint64_t batch_size, uint64_t world, Last last,
           std::optional<Nodes> nodes = {});

  uint64_t records() const { return records_; }
  uint64_t steps() const { return steps_; }

  // Whether every batch has `batch_size` rows, on every rank of every node.
  bool is_full() const { return is_full_; }

  // Records of the rank before its batch of this number, which is at most steps().
  uint64_t Begin(uint64_t batch, uint64_t rank) const;

  // Positions of a rank, from `first` on.
  struct Rows {
    uint64_t first;
    uint64_t there;   // of records
    uint64_t padded;  // those without one included
  };

  // A batch of the rank; beyond the last batch there are no rows.
  Rows Batch(uint64_t batch, uint64_t rank) const;

 private:
  uint64_t records_;
  uint64_t batch_size_;
  uint64_t world_;
  Last last_;
  uint64_t steps_;
  bool is_full_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_DIVISION_H_
