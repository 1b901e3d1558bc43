// Divides the records of a set into steps, and the records of each step among the ranks.
//
// Rank r of `world` reads positions r, r + world, ... of the order. All ranks take the same number
// of steps. In each step except the last, every rank reads `batch_size` records. The division is a
// pure function: every rank, process and machine computes the same, and a pass can resume at any
// batch.

#ifndef CACHECD_CORE_DIVISION_H_
#define CACHECD_CORE_DIVISION_H_

#include <cstdint>
#include <optional>

namespace cachecd {

// What happens to the records that do not fill a batch on every rank.
enum class Last {
  kDropped,
  // The last batch is short and delivers each of these records once. Its sizes on the ranks differ
  // by at most one. No batch is empty: a rank keeps one record for each batch that follows. So if a
  // rank has too few records, as on a node with a smaller set, its earlier batches are short as
  // well.
  kShort,
  // The last batch delivers each of these records once. Rows without a record pad it.
  kPadded,
};

class Division {
 public:
  // The smallest and the largest number of records on a node. They differ if nodes have their own
  // sets; all nodes take the same number of steps.
  struct Nodes {
    uint64_t least;
    uint64_t most;
  };

  // `world` and `batch_size` must not be 0. With kShort, throws std::invalid_argument on all ranks
  // of all nodes if a rank would have no record for one of its batches.
  Division(uint64_t records, uint64_t batch_size, uint64_t world, Last last,
           std::optional<Nodes> nodes = {});

  uint64_t records() const { return records_; }
  uint64_t steps() const { return steps_; }

  // True if every batch has `batch_size` rows, on every rank of every node.
  bool is_full() const { return is_full_; }

  // Returns the number of the rank's records before `batch`, which is at most steps().
  uint64_t Begin(uint64_t batch, uint64_t rank) const;

  // A range of positions of a rank.
  struct Rows {
    uint64_t first;
    uint64_t there;   // rows with a record
    uint64_t padded;  // all rows, padding included
  };

  // Returns the rows of a batch. Batches after the last batch have no rows.
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
