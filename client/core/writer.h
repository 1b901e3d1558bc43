// Writes one shard, a TFRecord file and its sidecar, within a fixed capacity in bytes.
//
// The writer owns both files until Finish; if it fails or is destroyed before, it removes them.
// With a capacity, it allocates all blocks before it writes. It appends a record only if the
// TFRecord file and the sidecar, each rounded up to blocks of kBlock bytes, stay within the
// capacity. So neither the disk nor the capacity is exhausted in the middle of a shard. Failed
// system calls throw IoError with the path and abort the writer. Not thread-safe. In a forked
// child, the files remain the parent's.

#ifndef CACHECD_CORE_WRITER_H_
#define CACHECD_CORE_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bytes.h"
#include "columns.h"
#include "file.h"
#include "sidecar.h"

namespace cachecd {

class ShardWriter {
 public:
  static constexpr uint64_t kBlock = 4096;
  static constexpr uint64_t kMetaBytes = 4096;

  // Throws EEXIST if the file or its sidecar exists. Capacity 0: unlimited, nothing reserved.
  // `meta_bytes` of the capacity are reserved for the meta text; a longer text must fit into the
  // capacity that the records left.
  ShardWriter(const std::string& path, uint64_t capacity, uint64_t meta_bytes = kMetaBytes);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();

  uint64_t num_records() const { return contents_.offsets.size(); }
  uint64_t num_bytes() const { return contents_.data_bytes; }
  uint64_t sidecar_bytes() const { return SidecarBytes(num_records(), units_bytes_, 0); }

  // Sets the sidecar's entry of a unit. The sidecar lists the units that have records. A unit has
  // no key if it was not described before its first record.
  void Describe(SidecarUnit unit);

  // Appends a record. Returns false, and writes nothing, if it does not fit. `unit`: the unit's
  // number.
  bool Append(ByteSpan record, uint64_t unit, uint32_t ordinal);

  // The most misfits of one call that are described, in all and of one feature and kind.
  static constexpr size_t kMostMisfits = 100;
  static constexpr size_t kMostAlike = 10;

  // A skipped record, and how many `more` skipped records are like it.
  struct Passed {
    uint32_t ordinal = 0;
    Misfit misfit;
    uint64_t more = 0;
  };

  struct Carried {
    uint64_t records = 0;   // appended
    uint64_t consumed = 0;  // bytes of all appended and skipped frames
    bool full = false;      // the next whole frame did not fit
    uint64_t passed = 0;    // skipped records, because they do not fit the schema
    std::vector<Passed> misfits;
  };

  // Appends whole frames unchanged, up to an incomplete or wrong frame. Verifies both CRCs of each.
  // Skips records that `check` refuses; they also use an ordinal. Ordinals count up from
  // `ordinal`. If the first frame is wrong, throws CorruptRecord(name, base).
  Carried AppendFrames(ByteSpan frames, uint64_t unit, uint32_t ordinal, const std::string& name,
                       uint64_t base, RecordCheck* check = nullptr);

  struct Sealed {
    uint64_t data_bytes;
    uint64_t sidecar_bytes;
    uint64_t digest;
  };

  // Truncates and fsyncs the file, writes and fsyncs the sidecar, and closes both. If a `meta`
  // beyond `meta_bytes` does not fit, throws std::invalid_argument and leaves the writer unchanged.
  Sealed Finish(const std::string& meta);

  // Closes and removes both files. Does nothing after Finish or Abort.
  void Abort();

 private:
  void RequireOpen() const;
  bool Fits(uint64_t frame_bytes, uint64_t meta_bytes, uint64_t unit_bytes = 0) const;
  // Returns the bytes that the unit's first record adds to the sidecar, or 0 for later records.
  uint64_t UnitBytes(uint64_t unit) const;
  void Note(uint64_t frame_bytes, uint64_t unit, uint32_t ordinal);
  void Put(ByteSpan bytes);
  void Flush();
  void Wrote(uint64_t bytes);
  template <typename Step>
  auto AbortOnFailure(Step step);

  const uint64_t generation_;
  const std::string path_;
  const uint64_t capacity_;
  uint64_t meta_bytes_;
  std::optional<File> file_;  // empty after Finish and Abort
  SidecarContents contents_;
  uint64_t units_bytes_ = 0;
  std::unordered_map<uint64_t, SidecarUnit> described_;  // units without a record yet
  std::unordered_map<uint64_t, uint32_t> indices_;       // of units with records, in the sidecar
  std::optional<std::pair<uint64_t, uint32_t>> last_;    // unit of the last record, and its index
  std::vector<uint8_t> buffer_;                          // appended, not yet written
  uint64_t written_ = 0;
  uint64_t started_ = 0;  // StartSync was called up to this offset
};

}  // namespace cachecd

#endif  // CACHECD_CORE_WRITER_H_
