#include "division.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cachecd {
namespace {

uint64_t DivideUp(uint64_t number, uint64_t by) { return number / by + (number % by != 0); }

}  // namespace

Division::Division(uint64_t records, uint64_t batch_size, uint64_t world, Last last,
                   std::optional<Nodes> nodes)
    : records_(records), batch_size_(batch_size), world_(world), last_(last) {
  const uint64_t least = std::min(records, nodes ? nodes->least : records);
  const uint64_t most = std::max(records, nodes ? nodes->most : records);
  steps_ = last == Last::kDropped ? least / world / batch_size
                                  : DivideUp(DivideUp(most, world), batch_size);
  const bool divides = most % world == 0 && most / world % batch_size == 0;
  is_full_ = last != Last::kShort || (least == most && divides);
  if (last == Last::kShort && least / world < steps_) {
    throw std::invalid_argument(std::to_string(least) + " records over " + std::to_string(world) +
                                " ranks, " + std::to_string(steps_) + " batches of at most " +
                                std::to_string(batch_size) +
                                " on each: some rank would have no record for its last batch");
  }
}

uint64_t Division::Begin(uint64_t batch, uint64_t rank) const {
  const uint64_t positions = records_ / world_ + (rank < records_ % world_ ? 1 : 0);
  uint64_t begin;
  if (__builtin_mul_overflow(batch, batch_size_, &begin)) begin = UINT64_MAX;
  // At least one record is left for each remaining batch.
  if (last_ == Last::kShort) return std::min(begin, positions - (steps_ - batch));
  return std::min(begin, positions);
}

Division::Rows Division::Batch(uint64_t batch, uint64_t rank) const {
  if (batch >= steps_) return {Begin(steps_, rank), 0, 0};
  const uint64_t first = Begin(batch, rank);
  const uint64_t there = Begin(batch + 1, rank) - first;
  return {first, there, last_ == Last::kPadded ? batch_size_ : there};
}

}  // namespace cachecd
