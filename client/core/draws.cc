#include "draws.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "mix.h"

namespace cachecd {

Draws::Draws(std::vector<uint64_t> bounds, uint64_t key, uint64_t positions)
    : bounds_(std::move(bounds)), base_(Mix(key + kGolden)), positions_(positions) {
  if (bounds_.empty() || bounds_.back() != kWhole ||
      !std::is_sorted(bounds_.begin(), bounds_.end())) {
    throw std::invalid_argument("the bounds of a draw have to ascend to 2**62");
  }
  Cursor cursor{0, std::vector<uint64_t>(bounds_.size())};
  for (uint64_t mark = 0; mark <= positions_ / kMarkEvery; ++mark) {
    Count(mark * kMarkEvery, &cursor);
    marks_.insert(marks_.end(), cursor.before.begin(), cursor.before.end());
  }
}

size_t Draws::operator[](uint64_t position) const {
  const uint64_t drawn = Mix(base_ + kGolden * position) >> 2;  // below kWhole
  const uint64_t* bounds = bounds_.data();
  const size_t last = bounds_.size() - 1;
  size_t dataset = 0;
  // No branch: the processor could not predict it.
  for (size_t i = 0; i < last; ++i) dataset += drawn >= bounds[i];
  return dataset;
}

void Draws::MoveTo(uint64_t position, Cursor* cursor) const {
  const uint64_t mark = position / kMarkEvery;
  if (cursor->before.empty() || cursor->position > position ||
      cursor->position < mark * kMarkEvery) {
    const auto counts = marks_.begin() + static_cast<ptrdiff_t>(mark * bounds_.size());
    cursor->before.assign(counts, counts + static_cast<ptrdiff_t>(bounds_.size()));
    cursor->position = mark * kMarkEvery;
  }
  Count(position, cursor);
}

void Draws::Count(uint64_t position, Cursor* cursor) const {
  uint64_t* before = cursor->before.data();
  for (uint64_t at = cursor->position; at < position; ++at) ++before[(*this)[at]];
  cursor->position = position;
}

Draws::Cursor Draws::At(uint64_t position) const {
  Cursor cursor;
  MoveTo(position, &cursor);
  return cursor;
}

uint64_t Draws::Length(std::vector<uint64_t> bounds, uint64_t key,
                       const std::vector<uint64_t>& records) {
  if (records.size() != bounds.size()) {
    throw std::invalid_argument(std::to_string(records.size()) + " datasets have records, " +
                                std::to_string(bounds.size()) + " have weights");
  }
  const Draws draws(std::move(bounds), key, 0);
  std::vector<uint64_t> left = records;
  if (std::find(left.begin(), left.end(), 0) != left.end()) return 0;
  uint64_t position = 0;
  while (--left[draws[position++]] != 0) {
  }
  return position;
}

}  // namespace cachecd
