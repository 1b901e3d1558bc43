// Computes which part of a picture becomes the result; see image.h.

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.h"
#include "image.h"
#include "mix.h"

namespace cachecd {

std::string ToText(Extent extent) {
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
  uint32_t Below(uint32_t limit) {  // limit > 0; biased by less than 2^-32
    return static_cast<uint32_t>((Next() >> 32) * limit >> 32);
  }

 private:
  uint64_t Next() { return Mix(state_ += kGolden); }
  uint64_t state_;
};

// Rounds as Python does: half to even, in the default rounding mode.
double Round(double value) { return std::nearbyint(value); }

// Draws a crop as torchvision's RandomResizedCrop.make_params does.
void DrawCrop(const ImageOptions& options, Extent picture, Random* random, Placement* placed) {
  const double width = picture.width;
  const double height = picture.height;
  double w = width;
  double h = height;
  bool drawn = false;
  for (int tries = 0; tries < 10 && !drawn; ++tries) {
    const double area = height * width * random->Uniform(options.scale[0], options.scale[1]);
    const double ratio =
        std::exp(random->Uniform(std::log(options.ratio[0]), std::log(options.ratio[1])));
    w = Round(std::sqrt(area * ratio));
    h = Round(std::sqrt(area / ratio));
    drawn = 0 < w && w <= width && 0 < h && h <= height;
  }
  if (!drawn) {
    const double low = options.ratio[0];
    const double high = options.ratio[1];
    // At least one pixel; torchvision fails for less.
    h = width / height < low ? std::max(1.0, Round(width / low)) : height;
    w = width / height > high ? std::max(1.0, Round(height * high)) : width;
  }
  placed->height = static_cast<uint32_t>(h);
  placed->width = static_cast<uint32_t>(w);
  const uint32_t down = picture.height - placed->height;
  const uint32_t across = picture.width - placed->width;
  placed->y = drawn ? random->Below(down + 1) : down / 2;
  placed->x = drawn ? random->Below(across + 1) : across / 2;
}

// Returns the same extent as torchvision's Resize(shorter).
Extent ScaleShorter(Extent picture, uint64_t shorter) {
  const bool upright = picture.width <= picture.height;
  const uint64_t longer =
      shorter * std::max(picture.height, picture.width) / std::min(picture.height, picture.width);
  if (longer > INT32_MAX) {
    throw SchemaMismatch("the picture has " + ToText(picture) +
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
  // Starts with the length that both sides of the result need, rounded down, and adds one or two.
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
      throw SchemaMismatch("the picture has " + ToText(picture) + ", too small to cut " +
                           ToText(placed.result) +
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
      throw SchemaMismatch("the picture has " + ToText(placed.scaled) +
                           " after scaling, too small to cut " + ToText(placed.result) +
                           ": give a larger resize");
    }
    placed.top = static_cast<uint32_t>(Round((placed.scaled.height - options.height) / 2.0));
    placed.left = static_cast<uint32_t>(Round((placed.scaled.width - options.width) / 2.0));
  } else if (options.shorter != 0 || options.height == 0) {
    placed.scaled = options.shorter != 0 ? ScaleShorter(picture, options.shorter) : picture;
    placed.result = placed.scaled;
  }
  const uint64_t pixels = uint64_t{placed.result.height} * placed.result.width;
  if (options.max_pixels != 0 && pixels > options.max_pixels) {
    throw SchemaMismatch("the picture has " + ToText(picture) + " and becomes " +
                         ToText(placed.result) +
                         ", more than max_pixels=" + std::to_string(options.max_pixels));
  }
  return placed;
}

}  // namespace cachecd
