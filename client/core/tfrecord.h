// TFRecord framing: encodes, verifies and locates frames.
//
//     frame  := header payload footer
//     header := u64 length  u32 masked CRC-32C of the length
//     footer := u32 masked CRC-32C of the payload
//
// A file consists only of frames. All integers are little-endian.

#ifndef CACHECD_CORE_TFRECORD_H_
#define CACHECD_CORE_TFRECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"

namespace cachecd {

constexpr size_t kFrameHeader = 12;
constexpr size_t kFrameFooter = 4;
constexpr size_t kFrameOverhead = kFrameHeader + kFrameFooter;

// Write kFrameHeader and kFrameFooter bytes.
void EncodeHeader(uint64_t length, uint8_t* to);
void EncodeFooter(ByteSpan payload, uint8_t* to);

// Reads kFrameHeader bytes. If the header's CRC is wrong, returns the error message. Otherwise sets
// `length`, the length of the payload, and returns "".
std::string CheckHeader(const uint8_t* header, uint64_t* length);

// Returns the error message if the footer does not match a payload with this CRC, else "".
std::string CompareCrc(const uint8_t* footer, uint32_t crc);

// Returns the error message if the payload does not match the footer, else "".
std::string CheckPayload(ByteSpan payload, const uint8_t* footer);

// If the header belongs to a frame that fills `frame` exactly, returns true, and the unverified
// payload. Otherwise returns false, and the error message in `why`.
bool OpenFrame(ByteSpan frame, ByteSpan* payload, std::string* why);

// Walks the file and appends the offsets of all frames. If `verify`, verifies the payloads. Throws
// CorruptRecord for the first wrong or truncated frame; `offsets` then has the frames before it.
// Throws IoError.
void ScanFile(const std::string& path, bool verify, std::vector<uint64_t>* offsets);

// Returns the verified payload of the frame at `offset`. Throws CorruptRecord, IoError.
std::string ReadRecord(const std::string& path, uint64_t offset);

}  // namespace cachecd

#endif  // CACHECD_CORE_TFRECORD_H_
