#include "division.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cachecd {
namespace {

uint64_t DivideUp(uint64_t number, uint64_t by) { return number / by + (number % by != 0); }

uint64_t CountBatches(uint64_t records, uint64_t world, uint64_t batch_size, Last last,
                      std::optional<uint64_t> batches) {
  if (last == Last::kDropped) {
    const uint64_t whole = records / world / batch_size;
    return std::min(whole, batches.value_or(whole));
  }
  return batches.value_or(DivideUp(DivideUp(records, world), batch_size));
}

}  // namespace

Division::Division(uint64_t records, uint64_t rank, uint64_t world, uint64_t batch_size, Last last,
                   std::optional<uint64_t> batches)
    : batch_size_(batch_size), last_(last) {
  positions_ = records / world + (rank < records % world ? 1 : 0);
  num_batches_ = CountBatches(records, world, batch_size, last, batches);
  if (last != Last::kShort) return;
  const uint64_t most = DivideUp(records, world);
  if (records / world < num_batches_ || DivideUp(most, batch_size) > num_batches_) {
    throw std::invalid_argument(std::to_string(records) + " records over " + std::to_string(world) +
                                " ranks make no " + std::to_string(num_batches_) +
                                " batches of 1 to " + std::to_string(batch_size) + " rows on each");
  }
}

uint64_t Division::Begin(uint64_t batch) const {
  uint64_t begin;
  if (__builtin_mul_overflow(batch, batch_size_, &begin)) begin = UINT64_MAX;
  // One is left for each batch that follows.
  if (last_ == Last::kShort) return std::min(begin, positions_ - (num_batches_ - batch));
  return std::min(begin, positions_);
}

Division::Rows Division::operator[](uint64_t batch) const {
  if (batch >= num_batches_) return {positions_, 0, 0};
  const uint64_t first = Begin(batch);
  const uint64_t there = Begin(batch + 1) - first;
  return {first, there, last_ == Last::kPadded ? batch_size_ : there};
}

}  // namespace cachecd
