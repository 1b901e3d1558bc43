// The records that one rank reads, in its order, each verified or replaced.
//
// Positions 0 .. positions() - 1 of rank r of `world` are the positions r, r + world, ... of the
// whole order, which is a Permutation if shuffled, else the files' own. Thread-safe.

#ifndef CACHECD_CORE_RECORDS_H_
#define CACHECD_CORE_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fileset.h"
#include "permutation.h"

namespace cachecd {

struct Order {
  uint64_t seed = 0;
  bool shuffle = true;
  uint64_t rank = 0;
  uint64_t world = 1;
};

class RecordSource {
 public:
  // `replace`: a corrupt record is replaced by the next good one of the same rank, cyclically;
  // otherwise it is thrown as CorruptRecord. `files` must outlive the source.
  RecordSource(const FileSet& files, const Order& order, bool replace);

  // How many records are this rank's.
  uint64_t positions() const { return positions_; }

  FileSet::Location Locate(uint64_t position) const;

  // The payload of the record at `position`. If it is not to be had and another takes its place,
  // `at` becomes that one's location. CorruptRecord if there is none; Stopped.
  ByteSpan Read(uint64_t position, FileSet::Location* at);

  // What was found corrupt so far, each once.
  std::vector<CorruptRecord> findings() const;

  // Makes a search for a replacement end with Stopped.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  struct Stopped {};

 private:
  ByteSpan Replace(uint64_t position, FileSet::Location* at);
  void Note(uint64_t position, const CorruptRecord& finding);

  const FileSet& files_;
  const Order order_;
  const Permutation permutation_;
  const uint64_t positions_;
  const bool replace_;
  std::atomic<bool> stopped_{false};

  // Two mutexes, as a search may take long and findings() must not wait for it.
  mutable std::mutex noting_;  // guards findings_ and reported_
  std::vector<CorruptRecord> findings_;
  std::unordered_set<uint64_t> reported_;  // positions that are in findings_

  std::mutex searching_;  // guards replacements_
  // A corrupt position's replacement. Without it a whole corrupt file, read in order, would be
  // searched again from each of its records.
  std::unordered_map<uint64_t, uint64_t> replacements_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_RECORDS_H_
