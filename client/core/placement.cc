// Where a result lies in a picture; see image.h.

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.h"
#include "image.h"
#include "mix.h"

namespace cachecd {

std::string ExtentText(Extent extent) {
  return std::to_string(extent.height) + " x " + std::to_string(extent.width) + " pixels";
}

namespace {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t key) : state_(Mix(key + kGolden)) {}
  double Uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(Next() >> 11) * 0x1p-53);
  }
  uint32_t Below(uint32_t limit) {  // limit > 0; uneven by less than 2^-32
    return static_cast<uint32_t>((Next() >> 32) * limit >> 32);
  }

 private:
  uint64_t Next() { return Mix(state_ += kGolden); }
  uint64_t state_;
};

// Python's round: half to even, in the default rounding mode.
int64_t Round(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

void DrawCrop(const ImageOptions& options, Extent picture, Random* random, Placement* placed) {
  const int64_t width = picture.width;
  const int64_t height = picture.height;
  const double area = static_cast<double>(height) * static_cast<double>(width);
  const double low = std::log(options.ratio[0]);
  const double high = std::log(options.ratio[1]);
  int64_t w, h;
  for (int tries = 0; tries < 10; ++tries) {
    const double target = area * random->Uniform(options.scale[0], options.scale[1]);
    const double ratio = std::exp(random->Uniform(low, high));
    w = Round(std::sqrt(target * ratio));
    h = Round(std::sqrt(target / ratio));
    if (0 < w && w <= width && 0 < h && h <= height) {
      placed->y = random->Below(static_cast<uint32_t>(height - h + 1));
      placed->x = random->Below(static_cast<uint32_t>(width - w + 1));
      placed->height = static_cast<uint32_t>(h);
      placed->width = static_cast<uint32_t>(w);
      return;
    }
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  w = width;
  h = height;
  if (ratio < options.ratio[0]) {
    h = Round(static_cast<double>(w) / options.ratio[0]);
  } else if (ratio > options.ratio[1]) {
    w = Round(static_cast<double>(h) * options.ratio[1]);
  }
  // A ratio so far from the picture's leaves nothing; torchvision fails.
  h = std::clamp<int64_t>(h, 1, height);
  w = std::clamp<int64_t>(w, 1, width);
  placed->y = static_cast<uint32_t>((height - h) / 2);
  placed->x = static_cast<uint32_t>((width - w) / 2);
  placed->height = static_cast<uint32_t>(h);
  placed->width = static_cast<uint32_t>(w);
}

// The picture's extent if its shorter side is scaled to `shorter`, as torchvision's Resize does.
Extent ScaleShorter(Extent picture, uint64_t shorter) {
  const bool upright = picture.width <= picture.height;
  const uint64_t longer =
      upright ? shorter * picture.height / picture.width : shorter * picture.width / picture.height;
  if (longer > INT32_MAX) {
    throw SchemaMismatch("the picture has " + ExtentText(picture) +
                         ", too narrow to scale its shorter side to " + std::to_string(shorter));
  }
  const auto low = static_cast<uint32_t>(shorter);
  const auto high = static_cast<uint32_t>(longer);
  return upright ? Extent{high, low} : Extent{low, high};
}

bool Covers(Extent extent, const ImageOptions& options) {
  return extent.height >= options.height && extent.width >= options.width;
}

Extent SmallestThatCovers(Extent picture, const ImageOptions& options) {
  const uint64_t side = std::min(picture.height, picture.width);
  // At least as long as each side of the result needs, rounded down, then one more or two.
  uint64_t shorter = std::max(
      {uint64_t{1}, options.height * side / picture.height, options.width * side / picture.width});
  Extent scaled = ScaleShorter(picture, shorter);
  while (!Covers(scaled, options)) scaled = ScaleShorter(picture, ++shorter);
  return scaled;
}

}  // namespace

Placement Place(const ImageOptions& options, Extent picture, uint64_t key) {
  if (picture.height == 0 || picture.width == 0) throw SchemaMismatch("the picture has no pixels");
  Random random(key);
  Placement placed{};
  placed.flip = random.Uniform(0, 1) < options.flip;
  placed.width = picture.width;
  placed.height = picture.height;
  placed.result = {options.height, options.width};
  placed.scaled = placed.result;
  if (options.crop == ImageOptions::Crop::kRandom && options.resized) {
    DrawCrop(options, picture, &random, &placed);
  } else if (options.crop == ImageOptions::Crop::kRandom) {
    if (!Covers(picture, options)) {
      throw SchemaMismatch("the picture has " + ExtentText(picture) + ", too small to cut " +
                           ExtentText(placed.result) +
                           " without resizing: give a scale or a smaller size");
    }
    placed.y = random.Below(picture.height - options.height + 1);
    placed.x = random.Below(picture.width - options.width + 1);
    placed.height = options.height;
    placed.width = options.width;
  } else if (options.crop == ImageOptions::Crop::kCenter) {
    placed.scaled = options.shorter != 0 ? ScaleShorter(picture, options.shorter)
                                         : SmallestThatCovers(picture, options);
    if (!Covers(placed.scaled, options)) {
      throw SchemaMismatch("the picture has " + ExtentText(placed.scaled) +
                           " after scaling, too small to cut " + ExtentText(placed.result) +
                           ": give a larger resize");
    }
    placed.top = static_cast<uint32_t>(Round((placed.scaled.height - options.height) / 2.0));
    placed.left = static_cast<uint32_t>(Round((placed.scaled.width - options.width) / 2.0));
  } else if (options.shorter != 0) {
    placed.scaled = ScaleShorter(picture, options.shorter);
    placed.result = placed.scaled;
  }
  const uint64_t pixels = uint64_t{placed.result.height} * placed.result.width;
  if (options.max_pixels != 0 && pixels > options.max_pixels) {
    throw SchemaMismatch("the picture has " + ExtentText(picture) + " and becomes " +
                         ExtentText(placed.result) +
                         ", more than max_pixels=" + std::to_string(options.max_pixels));
  }
  return placed;
}

}  // namespace cachecd
