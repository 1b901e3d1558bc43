#include "records.h"

#include "sigbus.h"

namespace cachecd {
namespace {

// A trainer that reads on through more than this has other worries than a complete list.
constexpr size_t kMostFindings = 100000;

}  // namespace

RecordSource::RecordSource(const FileSet& files, const Order& order, bool replace, uint64_t memory)
    : rank_(order.rank),
      world_(order.world),
      order_(files.extents(), order),
      positions_(order_.num_records() / order.world +
                 (order.rank < order_.num_records() % order.world ? 1 : 0)),
      replace_(replace),
      window_(files, order_, memory, [this](uint32_t file, const Window::Findings& findings) {
        NoteFile(file, findings);
      }) {
  if (!files.opened()) return;
  for (uint32_t file = 0; file < files.extents().size(); ++file) {
    NoteFile(file, files.Open(file)->findings());
  }
}

void RecordSource::MoveTo(uint64_t first, uint64_t last) {
  // A position is read from the last block that those up to it are, or from the one before.
  const size_t block = order_.LastBlock(Global(first));
  window_.MoveTo(block == 0 ? 0 : block - 1, order_.LastBlock(Global(last)));
}

Record RecordSource::Find(uint64_t position, Pins* pins) {
  const RecordOrder::Place place = order_[Global(position)];
  const Window::Block* block = nullptr;
  for (const auto& [number, held] : pins->blocks_) {
    if (number == place.block) block = held.get();
  }
  if (block == nullptr) {
    pins->blocks_.emplace_back(place.block, window_.Get(place.block));
    block = pins->blocks_.back().second.get();
  }
  const RecordFile* file = (*block)[place.slot].get();
  file->PrefetchLocation(place.index);
  return {file, place.file, place.index, {}};
}

void RecordSource::Check(const Record& record) {
  BusGuard::Watch(record.file->bytes());
  record.file->Bring(record.frame);
  record.file->Verify(record.frame, record.file->Open(record.frame));
}

void RecordSource::NoteFile(uint32_t file, const Window::Findings& findings) {
  if (findings.empty()) return;
  const std::lock_guard<std::mutex> lock(noting_);
  if (!reported_files_.insert(file).second) return;  // it is open again
  for (const CorruptRecord& finding : findings) {
    if (findings_.size() < kMostFindings) findings_.push_back(finding);
  }
}

void RecordSource::Note(uint64_t position, const CorruptRecord& finding) {
  const RecordOrder::Place place = order_[Global(position)];
  const std::lock_guard<std::mutex> lock(noting_);
  // By its place: several stages may have one record at several positions.
  if (findings_.size() < kMostFindings && reported_.emplace(place.file, place.index).second) {
    findings_.push_back(finding);
  }
}

void RecordSource::Replace(uint64_t position, const CorruptRecord& finding, Record* record,
                           Pins* pins) {
  Note(position, finding);
  if (!replace_) throw finding;
  const std::lock_guard<std::mutex> lock(searching_);
  std::vector<uint64_t> lost{position};
  // Of the blocks that are searched the last two stay, between which the order goes back and forth.
  const size_t held = pins->blocks_.size();
  // Ends when as many reads have failed as there are records: then all are corrupt.
  while (lost.size() < positions_) {
    CheckStopped();
    uint64_t candidate = (lost.back() + 1) % positions_;
    const auto known = replacements_.find(lost.back());
    if (known != replacements_.end()) candidate = known->second;
    if (pins->blocks_.size() > held + 2) {
      pins->blocks_.erase(pins->blocks_.begin() + static_cast<ptrdiff_t>(held));
    }
    *record = Find(candidate, pins);
    record->frame = record->file->Locate(record->index);
    try {
      Check(*record);
      for (const uint64_t each : lost) replacements_[each] = candidate;
      return;
    } catch (const CorruptRecord& error) {
      lost.push_back(candidate);
      Note(candidate, error);
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
  window_.Stop();
}

size_t RecordSource::num_findings() const {
  const std::lock_guard<std::mutex> lock(noting_);
  return findings_.size();
}

}  // namespace cachecd
