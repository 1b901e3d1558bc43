// The formats that image.cc decodes.

#ifndef CACHECD_CORE_CODECS_H_
#define CACHECD_CORE_CODECS_H_

#include <cstdint>
#include <vector>

#include "bytes.h"
#include "image.h"

namespace cachecd {

// How a row holds its pixels. The fourth byte of kRgbx means nothing; kCmyk is inverted, as Adobe
// stores it.
enum class PixelFormat : uint8_t { kGrey, kRgb, kRgbx, kCmyk };

// A picture as it is stored, by its header.
struct StoredPicture {
  Extent extent;
  int orientation = 1;  // EXIF's, 1 to 8
};

// The part of a stored picture that is wanted, in pixels after the reduction.
struct Cut {
  uint32_t left, right, top, bottom;
  uint32_t denominator;  // of the reduction, 1, 2, 4 or 8: JPEG alone
  bool grey;             // rows may come as kGrey
  bool exact;            // values are not to be changed
};

class RowSink {
 public:
  virtual Cut Begin(const StoredPicture& picture) = 0;
  // Takes the rows of the cut, in order; `pixels`: those from the cut's left on.
  virtual void Take(uint32_t row, const uint8_t* pixels, PixelFormat format) = 0;

  std::vector<uint8_t> row;  // a codec's scratch

 protected:
  ~RowSink() = default;
};

bool IsJpeg(ByteSpan encoded);
bool IsPng(ByteSpan encoded);

// If the format can be decoded, reads the header and, with a sink, the rows. DamagedImage,
// SchemaMismatch, the sink's exceptions.
StoredPicture ReadJpeg(ByteSpan encoded, RowSink* sink);
StoredPicture ReadPng(ByteSpan encoded, RowSink* sink);

// EXIF's orientation; 1 if there is none.
int ExifOrientation(ByteSpan tiff);

}  // namespace cachecd

#endif  // CACHECD_CORE_CODECS_H_
