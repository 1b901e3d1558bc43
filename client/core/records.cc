#include "records.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sigbus.h"

namespace cachecd {
namespace {

// The maximum number of findings. A trainer that continues after so many needs no complete list.
constexpr size_t kMostFindings = 100000;

std::optional<Draws> DrawsOf(const Order& order, const std::vector<RecordOrder>& orders) {
  if (!order.mixture) return {};
  Draws draws(order.mixture->bounds, order.mixture->key, order.mixture->positions);
  const std::vector<uint64_t> drawn = draws.At(draws.num_positions()).before;
  if (drawn.size() != orders.size()) {
    throw std::invalid_argument(std::to_string(drawn.size()) + " weights for " +
                                std::to_string(orders.size()) + " datasets");
  }
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (drawn[i] <= orders[i].num_records()) continue;
    throw std::invalid_argument(std::to_string(drawn[i]) + " records are drawn from dataset " +
                                std::to_string(i) + ", it has " +
                                std::to_string(orders[i].num_records()));
  }
  return draws;
}

}  // namespace

RecordSource::RecordSource(const FileSet& files, const Order& order, bool replace, uint64_t memory)
    : rank_(order.rank),
      world_(order.world),
      orders_(RecordOrder::All(files.extents(), order)),
      draws_(DrawsOf(order, orders_)),
      positions_(num_records() / order.world + (order.rank < num_records() % order.world ? 1 : 0)),
      replace_(replace) {
  for (const RecordOrder& each : orders_) {
    windows_.push_back(std::make_unique<Window>(
        files, each, memory,
        [this](uint32_t file, const Window::Findings& findings) { NoteFile(file, findings); }));
  }
  if (!files.opened()) return;
  for (uint32_t file = 0; file < files.extents().size(); ++file) {
    NoteFile(file, files.Open(file)->findings());
  }
}

uint64_t RecordSource::num_records() const {
  return draws_ ? draws_->num_positions() : orders_[0].num_records();
}

RecordSource::Place RecordSource::At(uint64_t position, Pins* pins) const {
  const uint64_t global = Global(position);
  if (!draws_) return {0, global};
  draws_->MoveTo(global, &pins->cursor_);
  const size_t order = (*draws_)[global];
  return {order, pins->cursor_.before[order]};
}

void RecordSource::MoveTo(uint64_t first, uint64_t last) {
  std::vector<uint64_t> from{Global(first)};
  std::vector<uint64_t> to{Global(last) + 1};
  if (draws_) {
    from = draws_->At(from[0]).before;
    to = draws_->At(to[0]).before;
  }
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (from[i] == to[i]) continue;
    // A position is read from LastBlock(position) or from the block before it.
    const size_t block = orders_[i].LastBlock(from[i]);
    windows_[i]->MoveTo(block == 0 ? 0 : block - 1, orders_[i].LastBlock(to[i] - 1));
  }
}

Record RecordSource::Find(uint64_t position, Pins* pins) {
  const Place at = At(position, pins);
  const RecordOrder::Place place = orders_[at.order][at.position];
  const Window::Block* block = nullptr;
  for (const Pins::Held& held : pins->blocks_) {
    if (held.order == at.order && held.number == place.block) block = held.block.get();
  }
  if (block == nullptr) {
    pins->blocks_.push_back({at.order, place.block, windows_[at.order]->Get(place.block)});
    block = pins->blocks_.back().block.get();
  }
  const RecordFile* file = (*block)[place.slot].get();
  file->PrefetchLocation(place.index);
  return {file, place.file, place.index, {}, position};
}

void RecordSource::Check(const Record& record) {
  BusGuard::Watch(record.file->bytes());
  record.file->Bring(record.frame);
  record.file->Verify(record.frame, record.file->Open(record.frame));
}

void RecordSource::NoteFile(uint32_t file, const Window::Findings& findings) {
  if (findings.empty()) return;
  const std::lock_guard<std::mutex> lock(noting_);
  if (!reported_files_.insert(file).second) return;  // reported when it was opened before
  for (const CorruptRecord& finding : findings) {
    if (findings_.size() < kMostFindings) findings_.push_back(finding);
  }
}

void RecordSource::Note(const Record& record, const CorruptRecord& finding) {
  const std::lock_guard<std::mutex> lock(noting_);
  // Noted by file and index, because stages may give one record several positions.
  if (findings_.size() < kMostFindings &&
      reported_.emplace(record.file_number, record.index).second) {
    findings_.push_back(finding);
  }
}

void RecordSource::Replace(const CorruptRecord& finding, std::vector<uint64_t>* lost,
                           Record* record, Pins* pins) {
  Note(*record, finding);
  if (!replace_) throw finding;
  const std::lock_guard<std::mutex> lock(searching_);
  lost->push_back(record->position);
  // The search alternates between two blocks of each order, so the last two blocks of each order
  // stay open.
  const size_t held = pins->blocks_.size();
  // Ends after as many failed reads as the rank has records: then all its records are corrupt.
  while (lost->size() < positions_) {
    CheckStopped();
    uint64_t candidate = (lost->back() + 1) % positions_;
    const auto known = replacements_.find(lost->back());
    if (known != replacements_.end()) candidate = known->second;
    if (pins->blocks_.size() > held + 2 * orders_.size()) {
      pins->blocks_.erase(pins->blocks_.begin() + static_cast<ptrdiff_t>(held));
    }
    *record = Find(candidate, pins);
    record->frame = record->file->Locate(record->index);
    try {
      Check(*record);
      for (const uint64_t each : *lost) replacements_[each] = candidate;
      return;
    } catch (const CorruptRecord& error) {
      lost->push_back(candidate);
      Note(*record, error);
    }
  }
  throw finding;
}

std::vector<CorruptRecord> RecordSource::findings() const {
  const std::lock_guard<std::mutex> lock(noting_);
  return findings_;
}

void RecordSource::Stop() {
  stopped_.store(true, std::memory_order_relaxed);
  for (const auto& window : windows_) window->Stop();
}

size_t RecordSource::num_findings() const {
  const std::lock_guard<std::mutex> lock(noting_);
  return findings_.size();
}

}  // namespace cachecd
