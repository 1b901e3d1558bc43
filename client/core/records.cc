#include "records.h"

#include "sigbus.h"

namespace cachecd {
namespace {

// A trainer that reads on through more than this has other worries than a complete list.
constexpr size_t kMostFindings = 100000;

}  // namespace

RecordSource::RecordSource(const FileSet& files, const Order& order, bool replace)
    : rank_(order.rank),
      world_(order.world),
      order_(files.extents(), order),
      positions_(order_.num_records() / order.world +
                 (order.rank < order_.num_records() % order.world ? 1 : 0)),
      replace_(replace),
      window_(files, order_, [this](const CorruptRecord& finding) { NoteFile(finding); }) {
  if (!files.opened()) return;
  for (uint32_t file = 0; file < files.extents().size(); ++file) {
    for (const CorruptRecord& finding : files.Open(file)->findings()) NoteFile(finding);
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

ByteSpan RecordSource::Read(const Record& record) {
  BusGuard::Watch(record.file->bytes());
  record.file->Bring(record.frame);
  const ByteSpan payload = record.file->Open(record.frame);
  record.file->Verify(record.frame, payload);
  return payload;
}

void RecordSource::NoteFile(const CorruptRecord& finding) {
  const std::lock_guard<std::mutex> lock(noting_);
  if (findings_.size() < kMostFindings) findings_.push_back(finding);
}

void RecordSource::Note(uint64_t position, const CorruptRecord& finding) {
  const std::lock_guard<std::mutex> lock(noting_);
  if (findings_.size() < kMostFindings && reported_.insert(position).second) {
    findings_.push_back(finding);
  }
}

ByteSpan RecordSource::Replace(uint64_t position, const CorruptRecord& finding, Record* record,
                               Pins* pins) {
  Note(position, finding);
  if (!replace_) throw finding;
  const std::lock_guard<std::mutex> lock(searching_);
  std::vector<uint64_t> lost{position};
  // Ends when as many reads have failed as there are records: then all are corrupt.
  while (lost.size() < positions_) {
    if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
    uint64_t candidate = (lost.back() + 1) % positions_;
    const auto known = replacements_.find(lost.back());
    if (known != replacements_.end()) candidate = known->second;
    *record = Find(candidate, pins);
    record->frame = record->file->Locate(record->index);
    try {
      const ByteSpan payload = Read(*record);
      for (const uint64_t each : lost) replacements_[each] = candidate;
      return payload;
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
