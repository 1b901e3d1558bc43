// Which of a rank's records make which of its batches.
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
  // `rank` is below `world`, and `batch_size` is not 0. `batches`: in all, in place of as many as
  // the records make: with kDropped at most so many, otherwise exactly so many. With kShort
  // std::invalid_argument, on every rank alike, if they are fewer than the batches on any rank, or
  // do not fit.
  Division(uint64_t records, uint64_t rank, uint64_t world, uint64_t batch_size, Last last,
           std::optional<uint64_t> batches = {});

  uint64_t num_batches() const { return num_batches_; }

  // Positions of this rank, from `first` on.
  struct Rows {
    uint64_t first;
    uint64_t there;   // of records
    uint64_t padded;  // those without one included
  };

  // Beyond the last batch there are none.
  Rows operator[](uint64_t batch) const;

 private:
  // The first position of a batch, or the last's end.
  uint64_t Begin(uint64_t batch) const;

  uint64_t positions_;
  uint64_t batch_size_;
  Last last_;
  uint64_t num_batches_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_DIVISION_H_
