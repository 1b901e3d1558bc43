// One TFRecord file, mapped, whose records are located by its sidecar, by offsets that the caller
// knows, or by walking it.

#ifndef CACHECD_CORE_RECORDFILE_H_
#define CACHECD_CORE_RECORDFILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bytes.h"
#include "errors.h"
#include "mapped.h"

namespace cachecd {

using Offsets = std::shared_ptr<const std::vector<uint64_t>>;

// Immutable once constructed, so thread-safe.
class RecordFile {
 public:
  // By `offsets`, unless null: std::invalid_argument if they do not ascend. If `tolerant`, what is
  // damaged costs the records that it makes unreadable and no more, and is listed in findings(): a
  // sidecar that cannot be used is replaced by a walk, a file cut short keeps what is left.
  // Otherwise CorruptSidecar or CorruptRecord. A file without sidecar that does not start with a
  // record is no TFRecord file: CorruptRecord in any case. IoError.
  RecordFile(const std::string& path, Offsets offsets, bool tolerant);

  // A file of which no record can be read, for this reason. `offsets` of its records, or null.
  RecordFile(Offsets offsets, std::string name, const std::string& why);

  const std::string& name() const { return name_; }
  ByteSpan bytes() const { return data_.bytes(); }
  uint64_t num_records() const { return num_records_; }
  // Whether that is what the sidecar or the caller says. Otherwise it is what is there, and there
  // may have been more.
  bool counted() const { return counted_; }
  bool lost() const { return !lost_.empty(); }
  uint64_t end() const { return end_; }  // of the last frame
  const std::vector<CorruptRecord>& findings() const { return findings_; }

  struct Frame {
    uint64_t begin;
    uint64_t end;
    uint64_t payload_bytes() const;  // 0 for what is no frame
  };

  // Where record `index` lies, by the index; nowhere beyond num_records().
  Frame Locate(uint64_t index) const;
  // Starts to load what Locate will look at.
  void PrefetchLocation(uint64_t index) const {
    if (index < num_records_) __builtin_prefetch(offsets_ + index);
  }

  // Brings a record into memory and into the page tables, as Prefault does.
  void Bring(const Frame& frame) const;

  // The payload as it lies in the mapping: the header is verified, the payload is not.
  // CorruptRecord, also for a file shorter than its index says.
  ByteSpan Open(const Frame& frame) const;

  // The frame as it lies in the mapping; empty if the file does not hold it.
  ByteSpan Raw(const Frame& frame) const;

  // Compares the payload, or its CRC, with the frame's footer; CorruptRecord.
  void Verify(const Frame& frame, ByteSpan payload) const;
  void VerifyCrc(const Frame& frame, uint32_t crc) const;

  // The finding of a page that the disk did not give back.
  [[noreturn]] void Unreadable(const Frame& frame) const;

  // See MappedFile.
  void ReadAhead(const std::function<bool()>& keep_going) const { data_.ReadAhead(keep_going); }

 private:
  void UseSidecar(bool tolerant);
  void DoWithout(const CorruptSidecar& sidecar, bool tolerant);
  void Walk(bool tolerant, bool has_sidecar);
  void UseOffsets(Offsets offsets);
  void Own(Offsets offsets);
  bool Holds(const Frame& frame) const;

  mutable MappedFile data_;
  const std::string name_;
  Offsets own_offsets_;
  // Of own_offsets_; here, as finding a record would otherwise be another cache miss.
  const uint64_t* offsets_ = nullptr;
  uint64_t num_records_ = 0;
  uint64_t end_ = 0;
  bool counted_ = true;
  std::string lost_;  // why no record can be read
  std::vector<CorruptRecord> findings_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_RECORDFILE_H_
