// Sidecars: the offset and the source of each record in a TFRecord file.
//
//     sidecar := header meta units offsets indices ordinals
//     header  := magic "CACHECDX"  u32 version  u32 meta_bytes  u64 records  u64 data_bytes
//                u64 digest  u32 units  u32 units_bytes  u32 crc
//     meta    := meta_bytes of UTF-8 JSON  u32 crc
//     units   := unit*  u32 crc
//     unit    := u64 number  u64 begin  u32 key_bytes  u32 etag_bytes  key  etag
//     offsets := records * u64  u32 crc
//     indices := records * u32, the index of each record's unit in units  u32 crc
//     ordinals:= records * u32  u32 crc
//
// Each crc is the masked CRC-32C of its section. The header's crc covers the 48 bytes before it.

#ifndef CACHECD_CORE_SIDECAR_H_
#define CACHECD_CORE_SIDECAR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"

namespace cachecd {

constexpr uint32_t kSidecarVersion = 2;
constexpr size_t kSidecarHeader = 52;
constexpr size_t kSidecarPerRecord = 8 + 4 + 4;
constexpr size_t kSidecarPerUnit = 8 + 8 + 4 + 4;  // without the key and the ETag
// The size of a sidecar without records, units and meta text: the header and five CRCs.
constexpr size_t kSidecarOverhead = kSidecarHeader + 5 * 4;

// A unit with records in a shard. `number`: its number in the listing. `begin`: its first byte in
// the object `key`. Key and ETag are bytes, as they were listed.
struct SidecarUnit {
  uint64_t number = 0;
  uint64_t begin = 0;
  std::string key;
  std::string etag;

  // Returns the size of the unit in a sidecar.
  uint64_t bytes() const { return kSidecarPerUnit + key.size() + etag.size(); }
};

// The contents of one sidecar in memory. `offsets`, `indices` and `ordinals` are equally long.
// `indices` are indices into `units`.
struct SidecarContents {
  std::string meta;
  uint64_t data_bytes = 0;
  std::vector<SidecarUnit> units;
  std::vector<uint64_t> offsets;
  std::vector<uint32_t> indices;
  std::vector<uint32_t> ordinals;
};

// Returns the sum of a 64-bit hash of (key, begin, ETag, ordinal) over the records, modulo 2^64.
// The sum does not depend on the order of the records or the numbers of the units. So the digests
// of shards add up to the digest of all their records.
uint64_t SidecarDigest(const SidecarContents& contents);

inline std::string SidecarPath(const std::string& path) { return path + ".idx"; }

// Returns the size of a sidecar. `units_bytes`: the sum of SidecarUnit::bytes.
inline uint64_t SidecarBytes(uint64_t records, uint64_t units_bytes, uint64_t meta_bytes) {
  return kSidecarOverhead + meta_bytes + units_bytes + records * kSidecarPerRecord;
}

struct SidecarHeader {
  uint32_t meta_bytes;
  uint64_t records;
  uint64_t data_bytes;
  uint64_t digest;
  uint32_t units;
  uint32_t units_bytes;
};

// Verifies the header at the `start` of a sidecar, and compares it with `size`, the size of the
// whole sidecar. Throws CorruptSidecar.
SidecarHeader CheckSidecarHeader(const std::string& path, ByteSpan start, uint64_t size);

// Reads and verifies only the header. Throws IoError. Throws CorruptSidecar if the header is wrong,
// or if the disk cannot read the file.
SidecarHeader ReadSidecarHeader(const std::string& path);

// The header and the meta text of a sidecar.
struct SidecarHead {
  SidecarHeader header;
  std::string meta;
};

// Reads and verifies only the header and the meta text. Errors as ReadSidecarHeader.
SidecarHead ReadSidecarHead(const std::string& path);

// The offsets of the records, and the size of their file.
struct RecordOffsets {
  std::vector<uint64_t> offsets;
  uint64_t data_bytes = 0;
};

// Reads and verifies only the header and the offsets. The offsets ascend from 0, and leave room for
// the overhead of each frame. Errors as ReadSidecarHeader.
RecordOffsets ReadSidecarOffsets(const std::string& path);

// The sections of a sidecar in memory. Valid while that memory is valid.
class SidecarView {
 public:
  // Verifies the header; see CheckSidecarHeader.
  SidecarView(std::string path, ByteSpan bytes);

  uint64_t records() const { return header_.records; }
  uint64_t data_bytes() const { return header_.data_bytes; }
  uint64_t digest() const { return header_.digest; }

  // Each function verifies the section that it returns. Throws CorruptSidecar. Integers are not
  // aligned.
  ByteSpan Meta() const;
  std::vector<SidecarUnit> Units() const;
  // u64 each. They ascend from 0, and leave room for the overhead of each frame.
  ByteSpan Offsets() const;
  // u32 each, below the number of units.
  ByteSpan Indices() const;
  // u32 each.
  ByteSpan Ordinals() const;

 private:
  // Returns the section after `start` bytes of sections and `sections` CRCs behind the header.
  ByteSpan Section(const char* name, uint64_t start, uint64_t sections, uint64_t size) const;

  std::string path_;
  ByteSpan bytes_;
  SidecarHeader header_;
};

// Reads and verifies the whole sidecar. Throws CorruptSidecar, IoError.
SidecarContents ReadSidecar(const std::string& path);

// Writes and fsyncs a new file; returns its size. Throws EEXIST if the file exists. After any other
// IoError no file is left. Throws std::invalid_argument for contents that ReadSidecar would refuse.
uint64_t WriteSidecar(const std::string& path, const SidecarContents& contents);

}  // namespace cachecd

#endif  // CACHECD_CORE_SIDECAR_H_
