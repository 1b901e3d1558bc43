// One mapped TFRecord file. The sidecar, the caller's offsets or a walk of the file locate its
// records.

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
  // Locates records by `offsets`, unless null; throws std::invalid_argument if they do not ascend.
  // If `tolerant`, damage is noted in findings(), and costs only unreadable records: a walk
  // replaces an unusable sidecar, and a truncated file keeps its remaining records. Otherwise
  // damage throws CorruptSidecar or CorruptRecord. A file without a sidecar that does not start
  // with a record is not a TFRecord file: it always throws CorruptRecord. Throws IoError.
  RecordFile(const std::string& path, Offsets offsets, bool tolerant);

  // A file whose records cannot be read, because of `why`. `offsets`: of its records, or null.
  RecordFile(Offsets offsets, std::string name, const std::string& why);

  const std::string& name() const { return name_; }
  ByteSpan bytes() const { return data_.bytes(); }
  uint64_t num_records() const { return num_records_; }
  // True if the count is the sidecar's or the caller's. If false, the remaining records in the file
  // were counted, and there may have been more.
  bool counted() const { return counted_; }
  bool lost() const { return !lost_.empty(); }
  uint64_t end() const { return end_; }  // the end of the last frame
  const std::vector<CorruptRecord>& findings() const { return findings_; }

  struct Frame {
    uint64_t begin;
    uint64_t end;
    uint64_t payload_bytes() const;  // 0 if it is not a frame
  };

  // Returns the location of record `index` in the index, or an empty frame beyond num_records().
  Frame Locate(uint64_t index) const;
  // Starts to load the memory that Locate reads.
  void PrefetchLocation(uint64_t index) const {
    if (index < num_records_) __builtin_prefetch(offsets_ + index);
  }

  // Loads a record into memory and into the page tables, as Prefault does.
  void Bring(const Frame& frame) const;

  // Returns the payload in the mapping. Verifies the header, not the payload. Throws CorruptRecord
  // if the header is wrong, or if the file is shorter than its index says.
  ByteSpan Open(const Frame& frame) const;

  // Returns the frame in the mapping, or an empty span if the file is too short.
  ByteSpan Raw(const Frame& frame) const;

  // Compare the payload, or its CRC, with the frame's footer. Throw CorruptRecord if they differ.
  void Verify(const Frame& frame, ByteSpan payload) const;
  void VerifyCrc(const Frame& frame, uint32_t crc) const;

  // Throws the CorruptRecord for a page that the disk cannot read.
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
  // The data of own_offsets_. Copied here, because a lookup would cost another cache miss.
  const uint64_t* offsets_ = nullptr;
  uint64_t num_records_ = 0;
  uint64_t end_ = 0;
  bool counted_ = true;
  std::string lost_;  // why no record can be read; empty: some can
  std::vector<CorruptRecord> findings_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_RECORDFILE_H_
