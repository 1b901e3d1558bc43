// Sidecars: where the records of a TFRecord file start, and what they were made from.
//
//     sidecar := header meta offsets units ordinals
//     header  := magic "CACHECDX"  u32 version  u32 meta_bytes  u64 records  u64 data_bytes  u32
//     crc meta    := meta_bytes of UTF-8 JSON        u32 crc offsets := records * u64 u32 crc units
//     := records * u64                   u32 crc ordinals:= records * u32                   u32 crc
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

// The sections of a sidecar that lies in memory; valid as long as that memory.
class SidecarView {
 public:
  // Verifies the header and that the size is what it says; CorruptSidecar.
  SidecarView(std::string path, ByteSpan bytes);

  uint64_t records() const { return records_; }
  uint64_t data_bytes() const { return data_bytes_; }

  // Each verifies its section before it returns it; CorruptSidecar. Integers are not aligned.
  ByteSpan Meta() const;
  // u64 each; they ascend from 0 and leave each frame room for its overhead.
  ByteSpan Offsets() const;
  ByteSpan Units() const;
  ByteSpan Ordinals() const;

 private:
  ByteSpan Section(const char* name, uint64_t start, uint64_t size) const;
  [[noreturn]] void Fail(const std::string& why) const;

  std::string path_;
  ByteSpan bytes_;
  uint64_t meta_bytes_;
  uint64_t records_;
  uint64_t data_bytes_;
};

// Reads and verifies all of it. CorruptSidecar, IoError.
SidecarContents ReadSidecar(const std::string& path);

// Writes and fsyncs a new file, EEXIST if there is one; returns its bytes. After an IoError no
// file is left. std::invalid_argument for contents that ReadSidecar would refuse.
uint64_t WriteSidecar(const std::string& path, const SidecarContents& contents);

}  // namespace cachecd

#endif  // CACHECD_CORE_SIDECAR_H_
