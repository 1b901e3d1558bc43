// Finds the records that one rank reads, and replaces corrupt records.
// Position i of rank r of `world` is position r + i * world of the whole order, or in a mixture, of
// the draws. Thread-safe.

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

// A record of an open file. The Pins passed to Find keep the file open.
struct Record {
  const RecordFile* file;
  uint32_t file_number;
  uint64_t index;  // within the file
  RecordFile::Frame frame;
  uint64_t position;  // of this rank
};

class RecordSource {
 public:
  // `replace`: the next good record of the same rank, cyclically, replaces a corrupt record;
  // otherwise CorruptRecord is thrown. `memory`: see Window. `files` must outlive the source.
  // Throws std::invalid_argument if a mixture draws more records of a dataset than the dataset has.
  RecordSource(const FileSet& files, const Order& order, bool replace, uint64_t memory);

  // The records of all ranks.
  uint64_t num_records() const;

  // Keeps files open for one thread, and remembers its position in the draws.
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

  // Announces that these positions are needed now, and no earlier positions.
  void MoveTo(uint64_t first, uint64_t last);

  // Returns the record at `position`, without its frame. Starts to load its index entry into the
  // processor's cache. Throws RecordFile's errors.
  Record Find(uint64_t position, Pins* pins);

  // Adds the finding about a corrupt record, and returns another record with a correct CRC. `lost`:
  // the positions tried so far that were corrupt; empty at first. Throws Stopped. Throws the
  // finding if `replace` is false or no good record is left. Watches mappings: see BusGuard.
  void Replace(const CorruptRecord& finding, std::vector<uint64_t>* lost, Record* record,
               Pins* pins);

  // Converts a position of this rank to a position in the order of all ranks.
  uint64_t Global(uint64_t position) const { return position * world_ + rank_; }

  // Returns each finding once. If there are very many findings, returns only the first findings.
  std::vector<CorruptRecord> findings() const;
  size_t num_findings() const;

  // Makes CheckStopped and the search for a replacement throw Stopped. Ends reading ahead.
  void Stop();
  struct Stopped {};
  void CheckStopped() const {
    if (stopped_.load(std::memory_order_relaxed)) throw Stopped();
  }

 private:
  // The number of an order, and a position in it.
  struct Place {
    size_t order;
    uint64_t position;
  };

  // Throws CorruptRecord.
  static void Check(const Record& record);
  void NoteFile(uint32_t file, const Window::Findings& findings);
  void Note(const Record& record, const CorruptRecord& finding);
  Place At(uint64_t position, Pins* pins) const;

  const uint64_t rank_;
  const uint64_t world_;
  const std::vector<RecordOrder> orders_;  // one per dataset
  const std::optional<Draws> draws_;       // in a mixture
  const uint64_t positions_;               // of this rank
  const bool replace_;
  std::atomic<bool> stopped_{false};

  // Two mutexes, because a search may take long and findings() must not wait for it.
  mutable std::mutex noting_;  // guards the next three
  std::vector<CorruptRecord> findings_;
  std::set<std::pair<uint32_t, uint64_t>> reported_;  // file and index of the records in findings_
  std::unordered_set<uint32_t> reported_files_;       // files whose own findings are in findings_

  std::mutex searching_;  // guards replacements_
  // The replacement of each corrupt position. Without it, reading a whole corrupt file in order
  // would repeat the search for each of its records.
  std::unordered_map<uint64_t, uint64_t> replacements_;

  std::vector<std::unique_ptr<Window>> windows_;  // per order; last: their threads call NoteFile
};

}  // namespace cachecd

#endif  // CACHECD_CORE_RECORDS_H_
