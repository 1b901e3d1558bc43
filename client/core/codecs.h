// The interface between image.cc and the decoders of JPEG and PNG.

#ifndef CACHECD_CORE_CODECS_H_
#define CACHECD_CORE_CODECS_H_

#include <cstdint>
#include <vector>

#include "bytes.h"
#include "image.h"

namespace cachecd {

// The layout of the pixels in a row. The fourth byte of kRgbx is undefined. kCmyk is inverted, as
// Adobe stores it.
enum class PixelFormat : uint8_t { kGrey, kRgb, kRgbx, kCmyk };

// The properties of a stored picture, from its header.
struct StoredPicture {
  Extent extent;
  int orientation = 1;  // 1 to 8
};

// The part of a stored picture to decode, in pixels after the reduction.
struct Cut {
  uint32_t left, right, top, bottom;
  uint32_t denominator;  // of the reduction: 1, or 2, 4, 8 for JPEG
  bool grey;             // the decoder may pass rows as kGrey
  bool exact;            // the decoder must not change values
};

class RowSink {
 public:
  virtual Cut Begin(const StoredPicture& picture) = 0;
  // Receives the rows of the cut, in order. `pixels` begins at the cut's left edge.
  virtual void Take(uint32_t row, const uint8_t* pixels, PixelFormat format) = 0;

  std::vector<uint8_t> row;  // scratch memory of the decoder

 protected:
  ~RowSink() = default;
};

bool IsJpeg(ByteSpan encoded);
bool IsPng(ByteSpan encoded);

// Each reads the header and, if `sink` is not null, the rows. They require CanDecodeJpeg() or
// CanDecodePng(), and throw DamagedImage, SchemaMismatch, and the exceptions of the sink.
StoredPicture ReadJpeg(ByteSpan encoded, RowSink* sink);
StoredPicture ReadPng(ByteSpan encoded, RowSink* sink);

}  // namespace cachecd

#endif  // CACHECD_CORE_CODECS_H_
