#include "tfrecord.h"

#include <algorithm>
#include <cstdio>

#include "crc32c.h"
#include "errors.h"
#include "file.h"

namespace cachecd {
namespace {

std::string CrcFinding(const char* what, uint32_t found, uint32_t expected) {
  char text[80];
  std::snprintf(text, sizeof text, "%s CRC is 0x%08x, expected 0x%08x", what, found, expected);
  return text;
}

std::string CutShort(uint64_t needed, uint64_t left) {
  return "cut short: the frame needs " + std::to_string(needed) + " bytes, the file has " +
         std::to_string(left) + " more";
}

// Reads a file through a sliding buffer, so that small and large frames need few calls. Nothing is
// mapped, so a failing disk is an IoError.
class FileCursor {
 public:
  explicit FileCursor(const File& file) : file_(file) {}

  // Returns `size` bytes at `offset`, valid until the next call. If they are not in the buffer,
  // reads at least `ahead` bytes. CorruptRecord if the file is shorter.
  const uint8_t* At(uint64_t offset, size_t size, size_t ahead) {
    if (offset < start_ || offset + size > start_ + held_) {
      buffer_.resize(std::max(size, ahead));
      held_ = file_.ReadAt(buffer_.data(), buffer_.size(), offset);
      start_ = offset;
      if (held_ < size) throw CorruptRecord(file_.path(), offset, CutShort(size, held_));
    }
    return buffer_.data() + (offset - start_);
  }

 private:
  const File& file_;
  std::vector<uint8_t> buffer_;
  uint64_t start_ = 0;
  size_t held_ = 0;
};

constexpr size_t kReadAhead = 256 << 10;

// Returns the record's length. CorruptRecord if its CRC is wrong or the frame exceeds `left` bytes.
uint64_t LengthAt(const std::string& path, uint64_t offset, const uint8_t* header, uint64_t left) {
  uint64_t length = 0;
  const std::string why = CheckHeader(header, &length);
  if (!why.empty()) {
    // Compression is the usual reason at the start of a foreign file.
    const bool compressed =
        offset == 0 && ((header[0] == 0x1f && header[1] == 0x8b) ||
                        (header[0] == 0x78 && (header[0] * 256 + header[1]) % 31 == 0));
    throw CorruptRecord(path, offset,
                        compressed ? why + " (it looks compressed: decompress it first)" : why);
  }
  if (length > left - kFrameOverhead) {
    throw CorruptRecord(path, offset,
                        length > UINT64_MAX - kFrameOverhead
                            ? "length " + std::to_string(length) + " is impossible"
                            : CutShort(length + kFrameOverhead, left));
  }
  return length;
}

}  // namespace

void EncodeHeader(uint64_t length, uint8_t* to) {
  StoreU64(to, length);
  StoreU32(to + 8, MaskedCrc32c(to, 8));
}

void EncodeFooter(ByteSpan payload, uint8_t* to) {
  StoreU32(to, MaskedCrc32c(payload.data, payload.size));
}

std::string CheckHeader(const uint8_t* header, uint64_t* length) {
  const uint32_t found = LoadU32(header + 8);
  const uint32_t expected = MaskedCrc32c(header, 8);
  if (found != expected) return CrcFinding("length", found, expected);
  *length = LoadU64(header);
  return {};
}

std::string CompareCrc(const uint8_t* footer, uint32_t crc) {
  const uint32_t found = LoadU32(footer);
  const uint32_t expected = MaskCrc(crc);
  if (found != expected) return CrcFinding("data", found, expected);
  return {};
}

std::string CheckPayload(ByteSpan payload, const uint8_t* footer) {
  return CompareCrc(footer, Crc32c(payload.data, payload.size));
}

bool OpenFrame(ByteSpan frame, ByteSpan* payload, std::string* why) {
  if (frame.size < kFrameOverhead) {
    *why = "a frame of " + std::to_string(frame.size) + " bytes is impossible";
    return false;
  }
  uint64_t length = 0;
  *why = CheckHeader(frame.data, &length);
  if (!why->empty()) return false;
  if (length != frame.size - kFrameOverhead) {
    *why = "length is " + std::to_string(length) + ", the index says " +
           std::to_string(frame.size - kFrameOverhead);
    return false;
  }
  *payload = {frame.data + kFrameHeader, frame.size - kFrameOverhead};
  return true;
}

void ScanFile(const std::string& path, bool verify, std::vector<uint64_t>* offsets) {
  const File file = File::Open(path);
  const uint64_t size = file.Size();
  FileCursor cursor(file);
  uint64_t length = 0;
  for (uint64_t offset = 0; offset < size; offset += length + kFrameOverhead) {
    const uint64_t left = size - offset;
    if (left < kFrameOverhead) throw CorruptRecord(path, offset, CutShort(kFrameOverhead, left));
    // After a large record, only the header of the next record is needed.
    const size_t ahead = verify || length < kReadAhead ? kReadAhead : 4096;
    length = LengthAt(path, offset, cursor.At(offset, kFrameHeader, ahead), left);
    if (verify) {
      uint32_t crc = 0;
      uint64_t at = offset + kFrameHeader;
      for (const uint64_t end = at + length; at < end;) {
        const size_t step = static_cast<size_t>(std::min<uint64_t>(end - at, kReadAhead));
        crc = Crc32c(cursor.At(at, step, kReadAhead), step, crc);
        at += step;
      }
      const uint32_t found = LoadU32(cursor.At(at, kFrameFooter, kReadAhead));
      if (found != MaskCrc(crc)) {
        throw CorruptRecord(path, offset, CrcFinding("data", found, MaskCrc(crc)));
      }
    }
    offsets->push_back(offset);
  }
}

std::string ReadRecord(const std::string& path, uint64_t offset) {
  const File file = File::Open(path);
  const uint64_t size = file.Size();
  const uint64_t left = offset < size ? size - offset : 0;
  if (left < kFrameOverhead) throw CorruptRecord(path, offset, CutShort(kFrameOverhead, left));
  uint8_t header[kFrameHeader];
  if (file.ReadAt(header, sizeof header, offset) < sizeof header) {
    throw CorruptRecord(path, offset, CutShort(kFrameOverhead, 0));
  }
  const uint64_t length = LengthAt(path, offset, header, left);
  std::string payload(length + kFrameFooter, '\0');
  const size_t held = file.ReadAt(payload.data(), payload.size(), offset + kFrameHeader);
  if (held < payload.size()) throw CorruptRecord(path, offset, CutShort(payload.size(), held));
  const auto* bytes = reinterpret_cast<const uint8_t*>(payload.data());
  const std::string why = CheckPayload({bytes, length}, bytes + length);
  if (!why.empty()) throw CorruptRecord(path, offset, why);
  payload.resize(length);
  return payload;
}

}  // namespace cachecd
