#include "image.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "codecs.h"
#include "errors.h"
#include "resample.h"

namespace cachecd {
namespace {

// From 4 bytes per pixel to 1, as Pillow does. `from` and `to` may be the same.
void MakeGrey(const uint8_t* from, uint32_t bytes, uint32_t count, uint8_t* to) {
  for (uint32_t i = 0; i < count; ++i, from += bytes) {
    to[i] =
        static_cast<uint8_t>((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  }
}

// As Pillow's convert does.
void MakeRgb(const uint8_t* cmyk, uint32_t count, uint8_t* to) {
  for (uint32_t i = 0; i < count; ++i, cmyk += 4, to += 4) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - cmyk[c]) * light + 128;
      to[c] = static_cast<uint8_t>(std::max(0, light - ((product + (product >> 8)) >> 8)));
    }
  }
}

constexpr size_t kRowPadding = 64;

}  // namespace

// From the rows of a stored picture to the result.
struct ImageDecoder::Scratch final : RowSink {
  // The cut of the stored picture that is needed.
  Cut Begin(const ImageOptions& given, const Placement& placement, const StoredPicture& picture,
            bool reduces, uint8_t* result) {
    const int turn = picture.orientation;
    transposed = turn >= 5;
    const Extent stored = picture.extent;
    AxisPlan across{transposed ? stored.height : stored.width,
                    placement.x,
                    placement.width,
                    placement.scaled.width,
                    placement.left,
                    placement.result.width};
    AxisPlan down{transposed ? stored.width : stored.height,
                  placement.y,
                  placement.height,
                  placement.scaled.height,
                  placement.top,
                  placement.result.height};
    for (const AxisPlan& plan : {across, down}) {
      if (plan.length == 0 || plan.length > plan.side || plan.box > plan.side - plan.length ||
          plan.count == 0 || plan.count > plan.scaled || plan.from > plan.scaled - plan.count) {
        throw std::invalid_argument("the placement is not one of this picture");
      }
    }
    // A reduced picture is sharper than Pillow's, so something has to be left to the filter.
    const auto suits = [](const AxisPlan& plan, uint64_t factor) {
      return 4 * uint64_t{plan.length} >= 5 * factor * plan.scaled;
    };
    uint32_t denominator = 1;
    while (reduces && !given.nearest && denominator < 8 && suits(across, 2 * denominator) &&
           suits(down, 2 * denominator)) {
      denominator *= 2;
    }
    across.denominator = down.denominator = denominator;
    across.nearest = down.nearest = given.nearest;
    across.flip = placement.flip;
    (transposed ? down : across).mirrored = turn == 2 || turn == 3 || turn == 7 || turn == 8;
    (transposed ? across : down).mirrored = turn == 3 || turn == 4 || turn == 6 || turn == 7;
    x.Make(transposed ? down : across, false);
    y.Make(transposed ? across : down, true);
    options = &given;
    channels = given.channels();
    if (!given.classes.empty()) table.Fill(given.classes);
    row_bytes = size_t{x.size()} * channels;
    to = result;
    if (transposed) {
      turned.resize(row_bytes * y.size());
      to = turned.data();
    }
    ring_bytes = row_bytes + kRowPadding;
    ring.resize(ring_bytes * y.taps());
    rows.resize(y.taps());
    next = 0;
    padding = kRowPadding + 4 * size_t{x.stride()};
    return {x.begin(), x.end(), y.begin(), y.end(), denominator, given.grey, padding};
  }

  void Take(uint32_t row, const uint8_t* pixels, PixelFormat format) override {
    row -= y.begin();
    if (next == y.size() || y.first(next) > row) return;
    const uint32_t bytes = Prepare(&pixels, format);
    uint8_t* mixed = ring.data() + row % y.taps() * ring_bytes;
    if (x.taps() > 1) {
      MixColumns(x, pixels, channels, portable, mixed);
    } else if (!options->classes.empty()) {
      Classify(pixels, bytes, mixed);
    } else {
      Pick(pixels, bytes, mixed);
    }
    for (; next < y.size() && y.first(next) + y.pixels(next) - 1 == row; ++next) {
      uint8_t* result = to + row_bytes * (y.is_reversed() ? y.size() - 1 - next : next);
      if (y.taps() == 1) {
        std::memcpy(result, mixed, row_bytes);
        continue;
      }
      for (uint32_t i = 0; i < y.pixels(next); ++i) {
        rows[i] = ring.data() + (y.first(next) + i) % y.taps() * ring_bytes;
      }
      MixRows(rows.data(), y.weights(next), y.pixels(next), row_bytes, portable, result);
    }
  }

  void Finish(uint8_t* result) {
    if (!transposed) return;
    const uint8_t* from = turned.data();
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j, from += channels) {
        std::memcpy(result + (j * y.size() + i) * channels, from, channels);
      }
    }
  }

  std::vector<uint8_t> decoded;  // a row of the picture
  bool portable = false;

 private:
  // The class numbers of colors: a hash table with open addresses.
  class ClassTable {
   public:
    void Fill(const std::vector<ImageOptions::ClassColor>& classes) {
      size_t size = 16;
      while (size < 4 * classes.size()) size *= 2;
      slots_.assign(size, kFree);
      for (const ImageOptions::ClassColor& entry : classes) {
        const uint32_t color = entry.red | entry.green << 8 | entry.blue << 16;
        *Find(color) = color | uint64_t{entry.number} << 32;
      }
      last_ = kFree;
    }

    // -1 if the color has none.
    int operator[](uint32_t color) {
      if (static_cast<uint32_t>(last_) != color) last_ = *Find(color);
      return last_ == kFree ? -1 : static_cast<int>(last_ >> 32);
    }

   private:
    static constexpr uint64_t kFree = UINT64_MAX;  // its low half is no color

    uint64_t* Find(uint32_t color) {
      size_t slot = color * 0x9e3779b9u >> 16;
      for (;; ++slot) {
        uint64_t* found = &slots_[slot & (slots_.size() - 1)];
        if (*found == kFree || static_cast<uint32_t>(*found) == color) return found;
      }
    }

    std::vector<uint64_t> slots_;
    uint64_t last_ = kFree;  // most pixels have the color of the pixel before
  };

  // Makes the pixels what the other steps take, and returns their bytes: 1, 4, or 3 if they are not
  // mixed.
  uint32_t Prepare(const uint8_t** pixels, PixelFormat format) {
    const uint32_t count = x.end() - x.begin();
    const uint8_t* from = *pixels;
    uint32_t bytes = format == PixelFormat::kGrey ? 1 : format == PixelFormat::kRgb ? 3 : 4;
    prepared.resize(size_t{count} * 4 + padding);
    uint8_t* made = prepared.data();
    if (format == PixelFormat::kCmyk) {
      MakeRgb(from, count, made);
      *pixels = from = made;
    }
    if (options->grey) {
      if (bytes == 1) return 1;
      MakeGrey(from, bytes, count, made);
      bytes = 1;
    } else if (bytes == 1) {
      for (uint32_t i = 0; i < count; ++i) std::memset(made + 4 * size_t{i}, from[i], 4);
      bytes = 4;
    } else if (bytes == 3 && x.taps() > 1) {
      for (uint32_t i = 0; i < count; ++i)
        std::memcpy(made + 4 * size_t{i}, from + 3 * size_t{i}, 3);
      bytes = 4;
    } else {
      return bytes;
    }
    *pixels = made;
    return bytes;
  }

  void Pick(const uint8_t* pixels, uint32_t bytes, uint8_t* mixed) const {
    const uint32_t last = x.size() - 1;
    if (bytes == channels && x.first(last) == last + x.first(0)) {
      std::memcpy(mixed, pixels + size_t{x.first(0)} * bytes, row_bytes);
      return;
    }
    for (uint32_t i = 0; i <= last; ++i, mixed += channels) {
      std::memcpy(mixed, pixels + size_t{x.first(i)} * bytes, channels);
    }
  }

  void Classify(const uint8_t* pixels, uint32_t bytes, uint8_t* mixed) {
    for (uint32_t i = 0; i < x.size(); ++i) {
      const uint8_t* pixel = pixels + size_t{x.first(i)} * bytes;
      const int number = table[pixel[0] | pixel[1] << 8 | pixel[2] << 16];
      if (number < 0 && !options->other) Refuse(pixel, i);
      mixed[i] = static_cast<uint8_t>(number < 0 ? *options->other : number);
    }
  }

  [[noreturn]] void Refuse(const uint8_t* pixel, uint32_t entry) const {
    uint32_t column = x.upright(entry);
    uint32_t row = y.upright(next);
    if (transposed) std::swap(column, row);
    char color[8];
    std::snprintf(color, sizeof color, "#%02x%02x%02x", pixel[0], pixel[1], pixel[2]);
    throw SchemaMismatch("the color " + std::string(color) + " at row " + std::to_string(row) +
                         ", column " + std::to_string(column) +
                         " of the picture has no class: add it to class_map, or give `other`");
  }

  const ImageOptions* options = nullptr;
  Axis x, y;  // of the picture as it is stored
  uint32_t channels = 0;
  bool transposed = false;
  uint32_t next = 0;  // entry of y
  size_t row_bytes = 0, ring_bytes = 0, padding = 0;
  uint8_t* to = nullptr;
  std::vector<uint8_t> prepared, ring, turned;
  std::vector<const uint8_t*> rows;
  ClassTable table;
};

namespace {

// What other files begin with; '?' stands for any byte.
constexpr struct {
  const char* start;
  const char* name;
} kOtherFormats[] = {{"GIF8", "a GIF"},
                     {"RIFF????WEBP", "a WebP"},
                     {"BM", "a BMP"},
                     {"II*", "a TIFF"},
                     {"MM", "a TIFF"},
                     {"????ftyp", "an AVIF, HEIF or video"},
                     {"????jP  ", "a JPEG 2000"},
                     {"????JXL ", "a JPEG XL"},
                     {"\xff\x0a", "a JPEG XL"},
                     {"\xff\x4f\xff\x51", "a JPEG 2000"},
                     {"8BPS", "a Photoshop"},
                     {"\x93NUMPY", "a NumPy"}};

[[noreturn]] void RefuseFormat(ByteSpan encoded) {
  for (const auto& format : kOtherFormats) {
    const size_t size = std::strlen(format.start);
    size_t same = 0;
    while (same < size && same < encoded.size &&
           (format.start[same] == '?' ||
            format.start[same] == static_cast<char>(encoded.data[same]))) {
      ++same;
    }
    if (same == size) {
      throw SchemaMismatch("the picture is " + std::string(format.name) +
                           " file, expected a JPEG or a PNG: convert it, or decode it with the "
                           "transform decode_image");
    }
  }
  std::string start;
  for (size_t i = 0; i < std::min<size_t>(encoded.size, 8); ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, " %02x", encoded.data[i]);
    start += hex;
  }
  throw DamagedImage("neither a JPEG nor a PNG: " + std::to_string(encoded.size) + " bytes" +
                     (start.empty() ? "" : ", which begin with" + start));
}

StoredPicture MeasureAny(ByteSpan encoded, uint64_t max_pixels) {
  if (!IsJpeg(encoded) && !IsPng(encoded)) RefuseFormat(encoded);
  const StoredPicture picture = IsJpeg(encoded) ? MeasureJpeg(encoded) : MeasurePng(encoded);
  const Extent extent = picture.extent;
  if (extent.height == 0 || extent.width == 0) throw DamagedImage("the picture has no pixels");
  if (max_pixels != 0 && uint64_t{extent.height} * extent.width > max_pixels) {
    throw SchemaMismatch("the picture has " + ExtentText(extent) +
                         ", more than max_pixels=" + std::to_string(max_pixels));
  }
  return picture;
}

}  // namespace

int ExifOrientation(ByteSpan tiff) {
  const bool big = tiff.size >= 8 && std::memcmp(tiff.data, "MM\0*", 4) == 0;
  if (!big && (tiff.size < 8 || std::memcmp(tiff.data, "II*\0", 4) != 0)) return 1;
  const auto number = [&](size_t at, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value = value << 8 | tiff.data[at + static_cast<size_t>(big ? i : bytes - 1 - i)];
    }
    return value;
  };
  const size_t at = number(4, 4);
  if (at > tiff.size - 2) return 1;
  for (size_t i = 0, entries = number(at, 2); i < entries; ++i) {
    const size_t entry = at + 2 + 12 * i;
    if (entry + 12 > tiff.size) return 1;
    constexpr uint32_t kOrientation = 0x112;
    constexpr uint32_t kLong = 4;
    if (number(entry, 2) != kOrientation) continue;
    const uint32_t value = number(entry + 8, number(entry + 2, 2) == kLong ? 4 : 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

ImageDecoder::ImageDecoder(bool portable) : scratch_(std::make_unique<Scratch>()) {
  scratch_->portable = portable;
}
ImageDecoder::~ImageDecoder() = default;

Extent ImageDecoder::Measure(ByteSpan encoded, uint64_t max_pixels) {
  const StoredPicture picture = MeasureAny(encoded, max_pixels);
  const Extent stored = picture.extent;
  return picture.orientation >= 5 ? Extent{stored.width, stored.height} : stored;
}

void ImageDecoder::Decode(ByteSpan encoded, const ImageOptions& options, const Placement& placement,
                          uint8_t* to) {
  const StoredPicture picture = MeasureAny(encoded, options.max_pixels);
  const bool is_jpeg = IsJpeg(encoded);
  const Cut cut = scratch_->Begin(options, placement, picture, is_jpeg, to);
  if (is_jpeg) {
    DecodeJpeg(encoded, picture.extent, cut, &scratch_->decoded, scratch_.get());
  } else {
    DecodePng(encoded, cut, &scratch_->decoded, scratch_.get());
  }
  scratch_->Finish(to);
}

void ImageDecoder::Convert(const uint8_t* pixels, Extent extent, uint32_t channels,
                           const ImageOptions& options, const Placement& placement, uint8_t* to) {
  const Cut cut = scratch_->Begin(options, placement, {extent}, false, to);
  const auto format = channels == 1 ? PixelFormat::kGrey : PixelFormat::kRgb;
  const size_t row_bytes = size_t{extent.width} * channels;
  const size_t needed = size_t{cut.right - cut.left} * channels;
  std::vector<uint8_t>& padded = scratch_->decoded;
  padded.resize(needed + cut.padding);
  for (uint32_t row = cut.top; row < cut.bottom; ++row) {
    const uint8_t* from = pixels + row * row_bytes + size_t{cut.left} * channels;
    std::memcpy(padded.data(), from, needed);
    scratch_->Take(row, padded.data(), format);
  }
  scratch_->Finish(to);
}

}  // namespace cachecd
