// Writes one shard: a TFRecord file and its sidecar, within a number of bytes fixed beforehand.
//
// The writer owns both files until Finish; destroyed earlier, or failed, it removes them. With a
// capacity, blocks for all of it are allocated before anything is written, and records are taken
// only while the TFRecord file and its sidecar, each rounded up to whole blocks of kBlock bytes,
// stay within it, so that neither the disk's end nor the limit is met in the middle of a shard.
// Every failure of the operating system is an IoError with the path and leaves the writer aborted.
// Not thread-safe. In a forked child, the files remain the parent's.

#ifndef CACHECD_CORE_WRITER_H_
#define CACHECD_CORE_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bytes.h"
#include "file.h"
#include "sidecar.h"

namespace cachecd {

class ShardWriter {
 public:
  static constexpr uint64_t kBlock = 4096;
  static constexpr uint64_t kMetaBytes = 4096;

  // EEXIST if the file or its sidecar exists. Capacity 0: unlimited, nothing reserved.
  // `meta_bytes` of the capacity are kept for the meta text; more of it must fit into what the
  // records left.
  ShardWriter(const std::string& path, uint64_t capacity, uint64_t meta_bytes = kMetaBytes);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();

  uint64_t num_records() const { return contents_.offsets.size(); }
  uint64_t num_bytes() const { return contents_.data_bytes; }
  uint64_t sidecar_bytes() const { return SidecarBytes(num_records(), units_bytes_, 0); }

  // What the sidecar says of a unit, by its number. The sidecar names the units of which there are
  // records: what is not described by the time of its first record has no key.
  void Describe(SidecarUnit unit);

  // False, and nothing is written, if the record does not fit. `unit`: the unit's number.
  bool Append(ByteSpan record, uint64_t unit, uint32_t ordinal);

  struct Carried {
    uint64_t records = 0;   // appended
    uint64_t consumed = 0;  // bytes of the frames they took
    bool full = false;      // the next whole frame did not fit
  };

  // Appends whole frames verbatim, both CRCs of each verified, up to an incomplete last one.
  // CorruptRecord(name, base + offset) for a wrong one; those before it stay appended.
  // Ordinals count up from `ordinal`.
  Carried AppendFrames(ByteSpan frames, uint64_t unit, uint32_t ordinal, const std::string& name,
                       uint64_t base);

  struct Sealed {
    uint64_t data_bytes;
    uint64_t sidecar_bytes;
    uint64_t digest;
  };

  // Truncates, fsyncs, writes and fsyncs the sidecar, closes. std::invalid_argument if a `meta`
  // beyond the allowance does not fit; the writer is then as before.
  Sealed Finish(const std::string& meta);

  // Closes and removes both files. Does nothing after Finish or Abort.
  void Abort();

 private:
  void RequireOpen() const;
  bool Fits(uint64_t frame_bytes, uint64_t meta_bytes, uint64_t unit_bytes = 0) const;
  // What the unit would add to the sidecar with its first record; 0 if it has one.
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
  std::optional<File> file_;  // none after Finish and Abort
  SidecarContents contents_;
  uint64_t units_bytes_ = 0;
  std::unordered_map<uint64_t, SidecarUnit> described_;  // that have no record yet
  std::unordered_map<uint64_t, uint32_t> indices_;       // of those that have
  std::optional<std::pair<uint64_t, uint32_t>> last_;    // the last record's unit, and its index
  std::vector<uint8_t> buffer_;                          // appended, not yet written
  uint64_t written_ = 0;
  uint64_t started_ = 0;  // up to where the kernel was told to write
};

}  // namespace cachecd

#endif  // CACHECD_CORE_WRITER_H_
