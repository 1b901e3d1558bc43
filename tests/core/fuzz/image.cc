// Any bytes as a picture, cropped and scaled in any way: refused or decoded, within memory that its
// header allows, the same each time and on every processor; a cut is a part of the whole.

#include "image.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "../native/harness.h"
#include "errors.h"
#include "fuzzer.h"
#include "memory.h"
#include "mutate.h"

namespace cachecd::native {
namespace {

constexpr size_t kSetting = 16;  // bytes of options before the picture
constexpr uint64_t kMostPixels = 1 << 18;
constexpr size_t kFixed = 1 << 20;
constexpr size_t kTimes = 8;          // of the input
constexpr size_t kBytesOfPixel = 32;  // three channels of coefficients and samples, and rows
constexpr size_t kBlock = 64;         // sides are filled up to whole blocks

ImageOptions Options(const uint8_t* setting) {
  ImageOptions options;
  options.crop = static_cast<ImageOptions::Crop>(setting[0] % 3);
  options.resized = (setting[0] & 4) != 0;
  options.nearest = (setting[0] & 8) != 0;
  options.grey = (setting[0] & 16) != 0;
  options.flip = (setting[0] & 32) != 0 ? 0.5 : 0;
  if ((setting[0] & 64) != 0 && options.nearest && !options.grey) {
    options.classes = {{0, 0, 0, 1}, {255, 255, 255, 2}, {setting[3], setting[2], setting[1], 3}};
    if ((setting[0] & 128) != 0) options.other = 9;
  }
  options.height = 1 + setting[1] % 70;
  options.width = 1 + setting[2] % 70;
  options.shorter = setting[3] % 90;
  options.scale[0] = (1 + setting[4] % 100) / 100.0;
  options.max_pixels = kMostPixels;
  return options;
}

// The pixels, or nothing if the picture was refused.
std::optional<Bytes> Decode(ImageDecoder* decoder, ByteSpan picture, const ImageOptions& options,
                            const Placement& placement) {
  Bytes pixels(size_t{placement.result.height} * placement.result.width * options.channels(), 0xa5);
  try {
    decoder->Decode(picture, options, placement, pixels.data());
  } catch (const DamagedImage&) {
    return std::nullopt;
  } catch (const SchemaMismatch&) {
    return std::nullopt;
  }
  return pixels;
}

// A cut without resizing equals its part of the whole picture.
void CutsAreParts(ImageDecoder* decoder, ByteSpan picture, Extent extent, uint64_t key) {
  ImageOptions options;
  options.crop = ImageOptions::Crop::kNone;
  options.height = extent.height;
  options.width = extent.width;
  const auto whole = Decode(decoder, picture, options, Place(options, extent, 0));
  if (!whole) return;
  options.crop = ImageOptions::Crop::kRandom;
  options.resized = false;
  options.height = 1 + static_cast<uint32_t>(key % extent.height);
  options.width = 1 + static_cast<uint32_t>((key >> 32) % extent.width);
  const Placement placement = Place(options, extent, key);
  const auto part = Decode(decoder, picture, options, placement);
  EXPECT(part);
  const size_t bytes = size_t{3} * placement.width;
  for (uint32_t row = 0; row < placement.height; ++row) {
    const size_t at = 3 * (size_t{placement.y + row} * extent.width + placement.x);
    EXPECT(std::memcmp(part->data() + row * bytes, whole->data() + at, bytes) == 0);
  }
}

void Check(const uint8_t* setting, ByteSpan picture, size_t* allowed) {
  ImageDecoder decoder;
  const Extent extent = decoder.Measure(picture, kMostPixels);
  EXPECT(uint64_t{extent.height} * extent.width <= kMostPixels && extent.height * extent.width > 0);
  *allowed += kBytesOfPixel * (extent.height + kBlock) * (extent.width + kBlock);
  const ImageOptions options = Options(setting);
  const uint64_t key = LoadU64(setting + 8);
  const Placement placement = Place(options, extent, key);
  EXPECT(uint64_t{placement.result.height} * placement.result.width <= kMostPixels);
  const auto pixels = Decode(&decoder, picture, options, placement);
  ImageDecoder portable(true);
  EXPECT(Decode(&portable, picture, options, placement) == pixels);
  CutsAreParts(&decoder, picture, extent, key);
  EXPECT(Decode(&decoder, picture, options, placement) == pixels);
}

uint32_t ReferencePngCrc(const uint8_t* from, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; ++i) {
    crc ^= from[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & ~((crc & 1) - 1));
  }
  return ~crc;
}

// The CRCs of a PNG's chunks.
void Mend(Bytes* input, Random* chance) {
  constexpr size_t kSignature = 8;
  constexpr size_t kFrame = 12;
  size_t at = kSetting + kSignature;
  if (input->size() < at || input->data()[kSetting] != 0x89) return;
  while (input->size() - at >= kFrame) {
    uint8_t* chunk = input->data() + at;
    const size_t size = size_t{chunk[0]} << 24 | chunk[1] << 16 | chunk[2] << 8 | chunk[3];
    if (size > input->size() - at - kFrame) return;
    if (!chance->OneIn(12)) {
      const uint32_t crc = ReferencePngCrc(chunk + 4, size + 4);
      for (int i = 0; i < 4; ++i) chunk[8 + size + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    }
    at += kFrame + size;
  }
}

}  // namespace
}  // namespace cachecd::native

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachecd;
  using namespace cachecd::native;
  if (size < kSetting) return 0;
  const MemoryWatch watch;
  size_t allowed = kFixed + kTimes * size;
  try {
    Check(data, {data + kSetting, size - kSetting}, &allowed);
  } catch (const DamagedImage&) {
  } catch (const SchemaMismatch&) {
  }
  EXPECT(watch.Peak() <= allowed);
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  return cachecd::native::MutateAndMend(data, size, most, seed, cachecd::native::Mend);
}
