#include "order.h"

#include <algorithm>
#include <numeric>

namespace cachecd {
namespace {

constexpr uint64_t kBlocksInWindow = 3;  // two that are read from, and the one to come

// Which of an order's shuffles a key is for.
enum class Shuffle : uint64_t { kFiles = 1, kWithin = 2, kAcross = 3 };

// A key for each shuffle of one seed. Permutation mixes its key, so it need only differ.
uint64_t Key(uint64_t seed, Shuffle shuffle, uint64_t block) {
  return seed + 0x9e3779b97f4a7c15u * (4 * block + static_cast<uint64_t>(shuffle));
}

}  // namespace

RecordOrder::RecordOrder(const std::vector<FileExtent>& files, const Order& order)
    : shuffle_(order.shuffle), files_(files.size()) {
  uint64_t bytes = 0;
  for (const FileExtent& file : files) bytes += file.bytes;
  const bool whole = order.window == 0 || bytes <= order.window;
  if (shuffle_ && !whole) {
    const Permutation permutation(files.size(), Key(order.seed, Shuffle::kFiles, 0));
    for (size_t i = 0; i < files.size(); ++i) files_[i] = static_cast<uint32_t>(permutation[i]);
  } else {
    std::iota(files_.begin(), files_.end(), 0u);
  }
  starts_.push_back(0);
  for (const uint32_t file : files_) starts_.push_back(starts_.back() + files[file].records);

  size_t first = 0;
  uint64_t held = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    const uint64_t next = files[files_[i]].bytes;
    // A file of more than a third of the window is a block of its own.
    if (!whole && starts_[i] != starts_[first] && held + next > order.window / kBlocksInWindow) {
      AddBlock(first, i, order.seed);
      first = i;
      held = 0;
    }
    held += next;
  }
  // Files without records that come last belong to no block.
  if (num_records() != starts_[first]) AddBlock(first, files_.size(), order.seed);
}

void RecordOrder::AddBlock(size_t first_file, size_t end_file, uint64_t seed) {
  const uint64_t begin = starts_[first_file];
  const uint64_t end = starts_[end_file];
  const uint64_t number = blocks_.size();
  // A set of one block is shuffled once, by the seed itself.
  const bool only = number == 0 && end == num_records();
  const uint64_t stretch =
      only || blocks_.empty()
          ? begin
          : blocks_.back().begin + (blocks_.back().end - blocks_.back().begin) / 2;
  const uint64_t stretch_end = only ? begin : begin + (end - begin) / 2;
  blocks_.push_back({first_file, end_file, begin, end,
                     Permutation(end - begin, only ? seed : Key(seed, Shuffle::kWithin, number)),
                     stretch,
                     Permutation(stretch_end - stretch, Key(seed, Shuffle::kAcross, number))});
}

RecordOrder::Place RecordOrder::operator[](uint64_t position) const {
  const auto after = [](uint64_t at, const Block& block) { return at < block.stretch; };
  uint64_t record = position;
  size_t number = 0;
  if (blocks_.size() > 1) {
    if (shuffle_) {
      const auto stretch = std::upper_bound(blocks_.begin(), blocks_.end(), position, after) - 1;
      // What follows the middle of the last block is in no stretch.
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
      std::upper_bound(starts_.begin() + static_cast<ptrdiff_t>(block.first_file),
                       starts_.begin() + static_cast<ptrdiff_t>(block.end_file), record) -
      1;
  const auto file = static_cast<size_t>(start - starts_.begin());
  return {static_cast<uint32_t>(number), static_cast<uint32_t>(file - block.first_file),
          files_[file], record - *start};
}

std::vector<uint32_t> RecordOrder::Files(size_t block) const {
  const auto begin = files_.begin();
  return {begin + static_cast<ptrdiff_t>(blocks_[block].first_file),
          begin + static_cast<ptrdiff_t>(blocks_[block].end_file)};
}

size_t RecordOrder::LastBlock(uint64_t position) const {
  // In stretch k blocks k - 1 and k are read from.
  const auto begin = [this](const Block& block) { return shuffle_ ? block.stretch : block.begin; };
  const auto beyond =
      std::upper_bound(blocks_.begin(), blocks_.end(), position,
                       [&](uint64_t at, const Block& block) { return at < begin(block); });
  return beyond == blocks_.begin() ? 0 : static_cast<size_t>(beyond - blocks_.begin()) - 1;
}

}  // namespace cachecd
