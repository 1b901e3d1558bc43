#include "order.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "mix.h"

namespace cachecd {
namespace {

constexpr uint64_t kBlocksInWindow = 3;  // two blocks that are read from, and the next one

// The shuffle that a key is for.
enum class Shuffle : uint64_t { kFiles = 1, kWithin = 2, kAcross = 3 };

// Returns a key for each shuffle of one seed. Distinct keys suffice, as Permutation mixes them.
uint64_t Key(uint64_t seed, Shuffle shuffle, uint64_t block) {
  return seed + kGolden * (4 * block + static_cast<uint64_t>(shuffle));
}

// Returns the seed of a stage; the first stage has the order's own seed. Later seeds are mixed, so
// that no key of one stage is a key of another stage.
uint64_t StageSeed(uint64_t seed, uint64_t stage) {
  return stage == 0 ? seed : Mix(seed + kGolden * stage);
}

void CheckSlice(const Slice& slice, const std::vector<FileExtent>& files) {
  if (slice.file >= files.size()) {
    throw std::invalid_argument("a slice of file " + std::to_string(slice.file) + " of " +
                                std::to_string(files.size()));
  }
  const uint64_t records = files[slice.file].records;
  if (slice.first > records || slice.count > records - slice.first) {
    throw std::invalid_argument("a slice of " + std::to_string(slice.count) + " records from " +
                                std::to_string(slice.first) + " on, file " +
                                std::to_string(slice.file) + " has " + std::to_string(records));
  }
}

}  // namespace

RecordOrder::RecordOrder(const std::vector<FileExtent>& files, const std::vector<Stage>& stages,
                         bool shuffle, uint64_t seed, uint64_t window)
    : shuffle_(shuffle), starts_{0} {
  for (size_t i = 0; i < stages.size(); ++i) {
    for (const Slice& slice : stages[i]) CheckSlice(slice, files);
    AddStage(files, stages[i], StageSeed(seed, i), window);
  }
}

std::vector<RecordOrder> RecordOrder::All(const std::vector<FileExtent>& files,
                                          const Order& order) {
  std::vector<RecordOrder> orders;
  if (order.mixture) {
    for (const Mixture::Part& part : order.mixture->parts) {
      const uint64_t seed = Mix(Mix(order.seed + kGolden) + orders.size());
      orders.emplace_back(files, part.stages, order.shuffle, seed, part.window);
    }
    return orders;
  }
  std::vector<Stage> stages = order.stages;
  if (stages.empty()) {
    stages.emplace_back();
    for (uint32_t i = 0; i < files.size(); ++i) stages[0].push_back({i, 0, files[i].records});
  }
  orders.emplace_back(files, stages, order.shuffle, order.seed, order.window);
  return orders;
}

void RecordOrder::AddStage(const std::vector<FileExtent>& files, const Stage& slices, uint64_t seed,
                           uint64_t window) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) bytes += files[slice.file].bytes;
  num_bytes_ = std::max(num_bytes_, bytes);
  const bool whole = window == 0 || bytes <= window;
  const size_t begin = slices_.size();
  if (shuffle_ && !whole) {
    const Permutation permutation(slices.size(), Key(seed, Shuffle::kFiles, 0));
    for (size_t i = 0; i < slices.size(); ++i) slices_.push_back(slices[permutation[i]]);
  } else {
    slices_.insert(slices_.end(), slices.begin(), slices.end());
  }
  for (size_t i = begin; i < slices_.size(); ++i) {
    starts_.push_back(starts_.back() + slices_[i].count);
  }
  const Span stage{seed, blocks_.size(), starts_[begin], starts_.back()};
  size_t first = begin;
  uint64_t held = 0;
  for (size_t i = begin; i < slices_.size(); ++i) {
    const uint64_t next = files[slices_[i].file].bytes;
    // A file larger than a third of the window is a block by itself.
    if (!whole && starts_[i] != starts_[first] && held + next > window / kBlocksInWindow) {
      AddBlock(stage, first, i);
      first = i;
      held = 0;
    }
    held += next;
  }
  // Slices without records at the end belong to no block.
  if (stage.end != starts_[first]) AddBlock(stage, first, slices_.size());
}

void RecordOrder::AddBlock(const Span& stage, size_t first_slice, size_t end_slice) {
  const uint64_t begin = starts_[first_slice];
  const uint64_t end = starts_[end_slice];
  const uint64_t number = blocks_.size() - stage.first_block;
  // A stage of one block is shuffled once, by the seed itself.
  const bool only = number == 0 && end == stage.end;
  const uint64_t stretch =
      number == 0 ? begin : blocks_.back().begin + (blocks_.back().end - blocks_.back().begin) / 2;
  const uint64_t stretch_end = only ? begin : begin + (end - begin) / 2;
  blocks_.push_back(
      {first_slice, end_slice, begin, end,
       Permutation(end - begin, only ? stage.seed : Key(stage.seed, Shuffle::kWithin, number)),
       stretch, Permutation(stretch_end - stretch, Key(stage.seed, Shuffle::kAcross, number))});
}

RecordOrder::Place RecordOrder::operator[](uint64_t position) const {
  const auto after = [](uint64_t at, const Block& block) { return at < block.stretch; };
  uint64_t record = position;
  size_t number = 0;
  if (blocks_.size() > 1) {
    if (shuffle_) {
      const auto stretch = std::upper_bound(blocks_.begin(), blocks_.end(), position, after) - 1;
      // Positions after the middle of the last block are in no stretch.
      const uint64_t offset = position - stretch->stretch;
      if (offset < stretch->across.size()) record = stretch->stretch + stretch->across[offset];
    }
    const auto beyond =
        std::upper_bound(blocks_.begin(), blocks_.end(), record,
                         [](uint64_t at, const Block& block) { return at < block.begin; });
    number = static_cast<size_t>(beyond - blocks_.begin()) - 1;
  }
  const Block& block = blocks_[number];
  if (shuffle_) record = block.begin + block.within[record - block.begin];
  const auto start =
      std::upper_bound(starts_.begin() + static_cast<ptrdiff_t>(block.first_slice),
                       starts_.begin() + static_cast<ptrdiff_t>(block.end_slice), record) -
      1;
  const auto slice = static_cast<size_t>(start - starts_.begin());
  return {static_cast<uint32_t>(number), static_cast<uint32_t>(slice - block.first_slice),
          slices_[slice].file, slices_[slice].first + (record - *start)};
}

std::vector<uint32_t> RecordOrder::Files(size_t block) const {
  std::vector<uint32_t> files;
  for (size_t i = blocks_[block].first_slice; i < blocks_[block].end_slice; ++i) {
    files.push_back(slices_[i].file);
  }
  return files;
}

size_t RecordOrder::LastBlock(uint64_t position) const {
  // Stretch k is read from blocks k - 1 and k.
  const auto begin = [this](const Block& block) { return shuffle_ ? block.stretch : block.begin; };
  const auto beyond =
      std::upper_bound(blocks_.begin(), blocks_.end(), position,
                       [&](uint64_t at, const Block& block) { return at < begin(block); });
  return beyond == blocks_.begin() ? 0 : static_cast<size_t>(beyond - blocks_.begin()) - 1;
}

}  // namespace cachecd
