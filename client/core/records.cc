#include "records.h"

#include <optional>

namespace cachecd {

RecordSource::RecordSource(const FileSet& files, const Order& order, bool replace)
    : files_(files),
      order_(order),
      permutation_(files.num_records(), order.seed),
      positions_(files.num_records() / order.world +
                 (order.rank < files.num_records() % order.world ? 1 : 0)),
      replace_(replace),
      findings_(files.findings()) {}

FileSet::Location RecordSource::Locate(uint64_t position) const {
  const uint64_t global = position * order_.world + order_.rank;
  return files_.Locate(order_.shuffle ? permutation_[global] : global);
}

ByteSpan RecordSource::Read(uint64_t position, FileSet::Location* at) {
  try {
    return files_.Read(*at);
  } catch (const CorruptRecord& error) {
    if (replace_) return Replace(position, at);
    Note(position, error);
    throw;
  }
}

void RecordSource::Note(uint64_t position, const CorruptRecord& finding) {
  const std::lock_guard<std::mutex> lock(noting_);
  if (reported_.insert(position).second) findings_.push_back(finding);
}

ByteSpan RecordSource::Replace(uint64_t position, FileSet::Location* at) {
  const std::lock_guard<std::mutex> lock(searching_);
  std::vector<uint64_t> lost;
  std::optional<CorruptRecord> first;
  // Ends when as many reads have failed as there are records: then all are corrupt.
  for (uint64_t candidate = position; lost.size() < positions_;
       candidate = (candidate + 1) % positions_) {
    if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
    const auto known = replacements_.find(candidate);
    if (known != replacements_.end()) candidate = known->second;
    *at = Locate(candidate);
    try {
      const ByteSpan payload = files_.Read(*at);
      for (const uint64_t each : lost) replacements_[each] = candidate;
      return payload;
    } catch (const CorruptRecord& error) {
      if (!first) first = error;
      lost.push_back(candidate);
      Note(candidate, error);
    }
  }
  throw *first;
}

std::vector<CorruptRecord> RecordSource::findings() const {
  const std::lock_guard<std::mutex> lock(noting_);
  return findings_;
}

}  // namespace cachecd
