// Sidecars: where the records of a TFRecord file start, and what they were made from.
//
//     sidecar := header meta offsets units ordinals
//     header  := magic "CACHECDX"  u32 version  u32 meta_bytes  u64 records  u64 data_bytes
//                u32 crc
//     meta    := meta_bytes of UTF-8 JSON  u32 crc
//     offsets := records * u64  u32 crc
//     units   := records * u64  u32 crc
//     ordinals:= records * u32  u32 crc
//
// Each crc is the masked CRC-32C of its section; the header's covers the 32 bytes before it.

#ifndef CACHECD_CORE_SIDECAR_H_
#define CACHECD_CORE_SIDECAR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"

namespace cachecd {

constexpr uint32_t kSidecarVersion = 1;
constexpr size_t kSidecarHeader = 36;
constexpr size_t kSidecarPerRecord = 8 + 8 + 4;
// Of a sidecar without records and without meta text: the header and the four sections' CRCs.
constexpr size_t kSidecarOverhead = kSidecarHeader + 4 * 4;

// One sidecar's contents in memory. Vectors are equally long.
struct SidecarContents {
  std::string meta;
  uint64_t data_bytes = 0;
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> units;
  std::vector<uint32_t> ordinals;
};

inline std::string SidecarPath(const std::string& path) { return path + ".idx"; }

inline uint64_t SidecarBytes(uint64_t records, uint64_t meta_bytes) {
  return kSidecarOverhead + meta_bytes + records * kSidecarPerRecord;
}

struct SidecarHeader {
  uint32_t meta_bytes;
  uint64_t records;
  uint64_t data_bytes;
};

// Verifies the header at the `start` of a sidecar, and that `size`, the whole sidecar's, is what it
// says; CorruptSidecar.
SidecarHeader CheckSidecarHeader(const std::string& path, ByteSpan start, uint64_t size);

// The same of a file, of which no more is read. CorruptSidecar, also for one that the disk does not
// give back; IoError.
SidecarHeader ReadSidecarHeader(const std::string& path);

// Where the records start, and the size of the file that they are in.
struct RecordOffsets {
  std::vector<uint64_t> offsets;
  uint64_t data_bytes = 0;
};

// A sidecar's, of which no more is read and verified than that takes. They ascend from 0 and leave
// each frame room for its overhead. Errors as of ReadSidecarHeader.
RecordOffsets ReadSidecarOffsets(const std::string& path);

// The sections of a sidecar that lies in memory; valid as long as that memory.
class SidecarView {
 public:
  // CheckSidecarHeader.
  SidecarView(std::string path, ByteSpan bytes);

  uint64_t records() const { return header_.records; }
  uint64_t data_bytes() const { return header_.data_bytes; }

  // Each verifies its section before it returns it; CorruptSidecar. Integers are not aligned.
  ByteSpan Meta() const;
  // u64 each; they ascend from 0 and leave each frame room for its overhead.
  ByteSpan Offsets() const;
  ByteSpan Units() const;
  ByteSpan Ordinals() const;

 private:
  ByteSpan Section(const char* name, uint64_t start, uint64_t size) const;

  std::string path_;
  ByteSpan bytes_;
  SidecarHeader header_;
};

// Reads and verifies all of it. CorruptSidecar, IoError.
SidecarContents ReadSidecar(const std::string& path);

// Writes and fsyncs a new file, EEXIST if there is one; returns its bytes. After an IoError no
// file is left. std::invalid_argument for contents that ReadSidecar would refuse.
uint64_t WriteSidecar(const std::string& path, const SidecarContents& contents);

}  // namespace cachecd

#endif  // CACHECD_CORE_SIDECAR_H_
