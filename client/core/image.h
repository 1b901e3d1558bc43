// Decodes, crops, scales and flips pictures. A JPEG, a PNG or stored pixels become uint8 [height,
// width, channels].

#ifndef CACHECD_CORE_IMAGE_H_
#define CACHECD_CORE_IMAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bytes.h"

namespace cachecd {

struct ImageOptions {
  enum class Crop : uint8_t { kRandom, kCenter, kNone };
  struct ClassColor {
    uint8_t red, green, blue, number;
  };

  Crop crop = Crop::kCenter;
  uint32_t height = 0;  // of the result; 0, with kNone: `shorter` or the picture decides
  uint32_t width = 0;
  // kNone: the shorter side of the result, instead of height and width. kCenter: the shorter side
  // before the cut, or 0 for the smallest side that covers height x width.
  uint32_t shorter = 0;
  bool resized = true;          // kRandom: false cuts height x width pixels without resizing
  double scale[2] = {0.08, 1};  // kRandom: share of the picture's area, from and to
  double ratio[2] = {3.0 / 4, 4.0 / 3};  // kRandom: width / height, from and to
  double flip = 0;                       // probability of a horizontal flip, with any crop
  bool grey = false;                     // one channel, by Rec. 601
  bool nearest = false;                  // false: bilinear, antialiased
  uint64_t max_pixels = 0;               // of the picture and of the result; 0: no limit
  // If not empty, the result has one channel of class numbers. Needs `nearest`, not `grey`.
  std::vector<ClassColor> classes;
  std::optional<uint8_t> other;  // number of all other colors; without it they are an error

  uint32_t channels() const { return grey || !classes.empty() ? 1 : 3; }
};

struct Extent {
  uint32_t height = 0, width = 0;
};
std::string ToText(Extent extent);  // "HEIGHT x WIDTH pixels"

// The part of the picture that becomes the result. The box (x, y, width, height) of the upright
// picture is scaled to `scaled`. The result is at (top, left) of the scaled box, flipped if `flip`.
struct Placement {
  uint32_t x, y, width, height;
  Extent scaled;
  uint32_t top, left;
  Extent result;
  bool flip;
};

// Computes the placement as torchvision v2's RandomResizedCrop, RandomCrop, Resize and CenterCrop
// do. `key` is the only source of randomness. Throws SchemaMismatch if a cut without resizing is
// larger than the picture, or if the result has more than max_pixels.
Placement Place(const ImageOptions& options, Extent picture, uint64_t key);

// The bytes are not a valid picture.
class DamagedImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// True if the core was built with libjpeg-turbo, or with libpng.
bool CanDecodeJpeg();
bool CanDecodePng();

// Returns the orientation, 1 to 8, of EXIF or else of XMP; 1 without both. `exif` may begin with
// "Exif\0\0".
int Orientation(ByteSpan exif, ByteSpan xmp);

// Not thread-safe, because it keeps scratch memory between pictures.
class ImageDecoder {
 public:
  // `portable`: does not use AVX2; the result is the same. For tests.
  explicit ImageDecoder(bool portable = false);
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;
  ~ImageDecoder();

  // Returns the extent of the upright picture (orientation applied), from its header. Throws
  // DamagedImage. Throws SchemaMismatch for an unsupported format or kind, for more than
  // max_pixels, or if the library for the format is missing.
  Extent Measure(ByteSpan encoded, uint64_t max_pixels);
  int orientation() const { return orientation_; }  // 1 to 8, of the last Measure

  // Writes result.height * result.width * channels() bytes. `placement` must be made for the extent
  // that Measure returned. Throws DamagedImage, SchemaMismatch.
  void Decode(ByteSpan encoded, const ImageOptions& options, const Placement& placement,
              uint8_t* to);

  // Like Decode, for stored pixels: uint8 [height, width, channels], 1 or 3 channels.
  void Convert(const uint8_t* pixels, Extent extent, uint32_t channels, const ImageOptions& options,
               const Placement& placement, uint8_t* to);

 private:
  struct Scratch;
  const std::unique_ptr<Scratch> scratch_;
  int orientation_ = 1;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_IMAGE_H_
