// TFRecord framing.
//
//     frame  := header payload footer
//     header := u64 length  u32 masked CRC-32C of the length
//     footer := u32 masked CRC-32C of the payload
//
// A file is frames and nothing else; all integers are little-endian.

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

// The finding if the header's CRC is wrong, else an empty string and its length. Reads kFrameHeader
// bytes.
std::string CheckHeader(const uint8_t* header, uint64_t* length);

// The finding if the footer is not that of a payload of this CRC, else an empty string.
std::string CompareCrc(const uint8_t* footer, uint32_t crc);

// The finding if the payload is not what the footer says, else an empty string.
std::string CheckPayload(ByteSpan payload, const uint8_t* footer);

// The payload of a frame that must fill `frame` exactly, not yet verified; the finding in `why` and
// false if the header is not that of such a frame.
bool OpenFrame(ByteSpan frame, ByteSpan* payload, std::string* why);

// Appends the offsets of all frames of the file, found by walking it; with `verify` the payloads
// are checked too. CorruptRecord for the first that is wrong or cut short; those before it are in
// `offsets` then. IoError.
void ScanFile(const std::string& path, bool verify, std::vector<uint64_t>* offsets);

// The payload of the frame at `offset`, verified. CorruptRecord, IoError.
std::string ReadRecord(const std::string& path, uint64_t offset);

}  // namespace cachecd

#endif  // CACHECD_CORE_TFRECORD_H_
