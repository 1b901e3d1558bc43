// The records that one rank reads, in its order, each verified or replaced.
//
// Positions 0, 1, ... of rank r of `world` are the positions r, r + world, ... of the whole order;
// of a mixture, of the draws. Thread-safe.

#ifndef CACHECD_CORE_RECORDS_H_
#define CACHECD_CORE_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "draws.h"
#include "fileset.h"
#include "order.h"
#include "window.h"

namespace cachecd {

// A record of an open file, which is that of the Pins it was located with.
struct Record {
  const RecordFile* file;
  uint32_t file_number;
  uint64_t index;  // within the file
  RecordFile::Frame frame;
  uint64_t position;  // of this rank
};

class RecordSource {
 public:
  // `replace`: a corrupt record is replaced by the next good one of the same rank, cyclically;
  // otherwise it is thrown as CorruptRecord. `memory`: see Window. `files` must outlive the source.
  // std::invalid_argument for a mixture that draws more of a dataset than it has.
  RecordSource(const FileSet& files, const Order& order, bool replace, uint64_t memory);

  // Of all ranks.
  uint64_t num_records() const;

  // Keeps files open for one thread, and where it is among the draws.
  class Pins {
   public:
    void Clear() { blocks_.clear(); }

   private:
    friend class RecordSource;
    struct Held {
      size_t order;
      size_t number;
      std::shared_ptr<const Window::Block> block;
    };

    std::vector<Held> blocks_;
    Draws::Cursor cursor_;
  };

  // Says that these positions are wanted now, and none before them.
  void MoveTo(uint64_t first, uint64_t last);

  // The record at `position`, without its frame, whose location starts to be loaded into the
  // processor's cache. RecordFile's errors.
  Record Find(uint64_t position, Pins* pins);

  // What to do about a record that was found corrupt: notes it, and looks for another, of which the
  // CRC is right, to take its place. `lost`: the positions found corrupt in that place so far, at
  // first none. The finding itself if no other record is left; Stopped. Watches mappings: see
  // BusGuard.
  void Replace(const CorruptRecord& finding, std::vector<uint64_t>* lost, Record* record,
               Pins* pins);

  // The place of this rank's position among those of all ranks.
  uint64_t Global(uint64_t position) const { return position * world_ + rank_; }

  // What was found corrupt so far, each once; of very many only the first.
  std::vector<CorruptRecord> findings() const;
  size_t num_findings() const;

  // Makes CheckStopped, and a search for a replacement, throw Stopped; ends reading ahead.
  void Stop();
  struct Stopped {};
  void CheckStopped() const {
    if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
  }

 private:
  // Of the orders, and of its positions.
  struct Place {
    size_t order;
    uint64_t position;
  };

  // CorruptRecord.
  static void Check(const Record& record);
  void NoteFile(uint32_t file, const Window::Findings& findings);
  void Note(const Record& record, const CorruptRecord& finding);
  Place At(uint64_t position, Pins* pins) const;

  const uint64_t rank_;
  const uint64_t world_;
  const std::vector<RecordOrder> orders_;  // of each dataset
  const std::optional<Draws> draws_;       // of a mixture
  const uint64_t positions_;               // this rank's
  const bool replace_;
  std::atomic<bool> stopped_{false};

  // Two mutexes, as a search may take long and findings() must not wait for it.
  mutable std::mutex noting_;  // guards the next three
  std::vector<CorruptRecord> findings_;
  std::set<std::pair<uint32_t, uint64_t>> reported_;  // file and index of what is in findings_
  std::unordered_set<uint32_t> reported_files_;       // of which the file's own are

  std::mutex searching_;  // guards replacements_
  // A corrupt position's replacement. Without it a whole corrupt file, read in order, would be
  // searched again from each of its records.
  std::unordered_map<uint64_t, uint64_t> replacements_;

  std::vector<std::unique_ptr<Window>> windows_;  // of the orders; last: their threads note
};

}  // namespace cachecd

#endif  // CACHECD_CORE_RECORDS_H_
