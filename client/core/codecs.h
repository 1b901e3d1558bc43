// The formats that image.cc decodes: what their headers say, and their pixels row by row.

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

// A picture as it is stored.
struct StoredPicture {
  Extent extent;
  int orientation = 1;  // EXIF's, 1 to 8
};

// The part of a stored picture that is wanted.
struct Cut {
  uint32_t left, right, top, bottom;  // in pixels after the reduction
  uint32_t denominator;               // of the reduction, 1, 2, 4 or 8: JPEG alone
  bool grey;                          // rows may come as kGrey
  size_t padding;                     // bytes that may be read beyond a row
};

// Takes the rows of a cut, in order.
class RowSink {
 public:
  // `pixels`: those from the cut's left on.
  virtual void Take(uint32_t row, const uint8_t* pixels, PixelFormat format) = 0;

 protected:
  ~RowSink() = default;
};

bool IsJpeg(ByteSpan encoded);
bool IsPng(ByteSpan encoded);

// DamagedImage, SchemaMismatch.
StoredPicture MeasureJpeg(ByteSpan encoded);
StoredPicture MeasurePng(ByteSpan encoded);

// `row`: scratch. DamagedImage, SchemaMismatch, and what the sink throws.
void DecodeJpeg(ByteSpan encoded, Extent stored, const Cut& cut, std::vector<uint8_t>* row,
                RowSink* sink);
void DecodePng(ByteSpan encoded, const Cut& cut, std::vector<uint8_t>* row, RowSink* sink);

// EXIF's orientation; 1 if there is none or it is no EXIF.
int ExifOrientation(ByteSpan tiff);

}  // namespace cachecd

#endif  // CACHECD_CORE_CODECS_H_
