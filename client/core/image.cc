#include "image.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>

#include "codecs.h"
#include "errors.h"
#include "resample.h"

namespace cachecd {
namespace {

// Gives the same values as Pillow.
void MakeGrey(const uint8_t* from, uint32_t bytes, uint32_t count, uint8_t* to) {
  for (uint32_t i = 0; i < count; ++i, from += bytes) {
    to[i] =
        static_cast<uint8_t>((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16);
  }
}

// Gives the same values as Pillow.
void MakeRgbx(const uint8_t* cmyk, uint32_t count, uint8_t* to) {
  for (uint32_t i = 0; i < count; ++i, cmyk += 4, to += 4) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - cmyk[c]) * light + 128;
      to[c] = static_cast<uint8_t>(std::max(0, light - ((product + (product >> 8)) >> 8)));
    }
  }
}

// Throws DamagedImage, SchemaMismatch.
void CheckExtent(Extent extent, uint64_t max_pixels) {
  if (extent.height == 0 || extent.width == 0) throw DamagedImage("the picture has no pixels");
  if (max_pixels != 0 && uint64_t{extent.height} * extent.width > max_pixels) {
    throw SchemaMismatch("the picture has " + ToText(extent) +
                         ", more than max_pixels=" + std::to_string(max_pixels));
  }
}

[[noreturn]] void RefuseFormat(ByteSpan encoded) {
  constexpr struct {
    size_t at;
    const char* text;
    const char* name;
  } kFormats[] = {{0, "GIF8", "a GIF"},     {8, "WEBP", "a WebP"},
                  {0, "BM", "a BMP"},       {0, "II*", "a TIFF"},
                  {0, "MM", "a TIFF"},      {4, "ftyp", "an AVIF or HEIF"},
                  {4, "JXL ", "a JPEG XL"}, {4, "jP  ", "a JPEG 2000"}};
  for (const auto& format : kFormats) {
    const size_t size = std::strlen(format.text);
    if (encoded.size < format.at + size ||
        std::memcmp(encoded.data + format.at, format.text, size) != 0) {
      continue;
    }
    throw SchemaMismatch("the picture is " + std::string(format.name) +
                         " file, expected a JPEG or a PNG: convert it, or use the transform "
                         "decode_image");
  }
  throw DamagedImage("the " + std::to_string(encoded.size) + " bytes are neither a JPEG nor a PNG");
}

StoredPicture Read(ByteSpan encoded, RowSink* sink) {
  const bool is_jpeg = IsJpeg(encoded);
  if (!is_jpeg && !IsPng(encoded)) RefuseFormat(encoded);
  if (is_jpeg ? CanDecodeJpeg() : CanDecodePng()) {
    return (is_jpeg ? ReadJpeg : ReadPng)(encoded, sink);
  }
  const std::string kind = is_jpeg ? "JPEG" : "PNG";
  const std::string library = is_jpeg ? "libjpeg-turbo" : "libpng";
  const std::string package = is_jpeg ? "libjpeg62-turbo-dev or libjpeg-turbo8-dev" : "libpng-dev";
  throw SchemaMismatch("the picture is a " + kind + " file, and cachecd-client was built without " +
                       library + ": install it (Debian and Ubuntu: " + package +
                       ") and build cachecd-client again");
}

}  // namespace

// Makes the result from the rows of a stored picture.
struct ImageDecoder::Scratch final : RowSink {
  void Start(const ImageOptions& given, const Placement& place, bool reduces, uint8_t* result) {
    options = &given;
    placement = place;
    can_reduce = reduces && !given.nearest;
    to = result;
    colors.clear();
    for (const auto& [red, green, blue, number] : given.classes) {
      colors.push_back((red | green << 8 | uint32_t{blue} << 16) << 8 | number);
    }
    std::sort(colors.begin(), colors.end());
  }

  Cut Begin(const StoredPicture& picture) override {
    const int turn = picture.orientation;
    CheckExtent(picture.extent, options->max_pixels);
    transposed = turn >= 5;
    // The axes of the upright picture.
    Axis& across = transposed ? y : x;
    Axis& down = transposed ? x : y;
    const Placement& at = placement;
    const auto fields = [](Axis& axis) {
      return std::tie(axis.box, axis.length, axis.scaled, axis.from, axis.count);
    };
    fields(across) = std::tie(at.x, at.width, at.scaled.width, at.left, at.result.width);
    fields(down) = std::tie(at.y, at.height, at.scaled.height, at.top, at.result.height);
    across.flip = at.flip;
    down.flip = false;
    x.side = picture.extent.width;
    y.side = picture.extent.height;
    x.mirrored = turn == 2 || turn == 3 || turn == 7 || turn == 8;
    y.mirrored = turn == 3 || turn == 4 || turn == 6 || turn == 7;
    uint32_t factor = 1;
    // A reduced picture is sharper than Pillow's, so the filter still has to shrink it by 1.25.
    const auto suits = [&](const Axis& axis) {
      return uint64_t{4} * axis.length >= uint64_t{10} * factor * axis.scaled;
    };
    while (can_reduce && factor < 8 && suits(x) && suits(y)) factor *= 2;
    for (Axis* axis : {&x, &y}) {
      if (axis->length == 0 || axis->length > axis->side || axis->box > axis->side - axis->length ||
          axis->count == 0 || axis->count > axis->scaled ||
          axis->from > axis->scaled - axis->count) {
        throw std::invalid_argument("the placement is not one of this picture");
      }
      axis->denominator = factor;
      axis->Make(options->nearest, axis == &y);
    }
    channels = options->channels();
    row_bytes = size_t{x.count} * channels;
    if (transposed) turned.resize(row_bytes * y.count);
    ring_bytes = row_bytes + kMixPadding;
    ring.resize(ring_bytes * y.taps);
    rows.resize(y.taps);
    prepared.resize(size_t{x.end - x.begin} * 4 + kMixPadding);
    next = 0;
    return {x.begin, x.end, y.begin, y.end, factor, options->grey, options->nearest};
  }

  void Take(uint32_t number, const uint8_t* pixels, PixelFormat format) override {
    number -= y.begin;
    if (next == y.count || y.first[next] > number) return;
    const uint32_t bytes = Prepare(&pixels, format);
    uint8_t* mixed = ring.data() + number % y.taps * ring_bytes;
    if (x.taps > 1) {
      MixColumns(x, pixels, channels, portable, mixed);
    } else if (!colors.empty()) {
      Classify(pixels, bytes, mixed);
    } else if (bytes == channels && x.first[x.count - 1] == x.first[0] + x.count - 1) {
      std::memcpy(mixed, pixels + size_t{x.first[0]} * bytes, row_bytes);
    } else {
      for (uint32_t i = 0; i < x.count; ++i) {
        std::memcpy(mixed + size_t{i} * channels, pixels + size_t{x.first[i]} * bytes, channels);
      }
    }
    for (; next < y.count && y.first[next] + y.pixels[next] - 1 <= number; ++next) {
      uint8_t* result = transposed ? turned.data() : to;
      result += row_bytes * (y.reversed ? y.count - 1 - next : next);
      for (uint32_t i = 0; i < y.pixels[next]; ++i) {
        rows[i] = ring.data() + (y.first[next] + i) % y.taps * ring_bytes;
      }
      if (y.taps == 1) {
        std::memcpy(result, mixed, row_bytes);
      } else {
        const int16_t* weights = y.weights.data() + size_t{next} * y.stride;
        MixRows(rows.data(), weights, y.pixels[next], row_bytes, portable, result);
      }
    }
  }

  void Finish() {
    for (size_t i = 0; transposed && i < y.count; ++i) {
      for (size_t j = 0; j < x.count; ++j) {
        std::memcpy(to + (j * y.count + i) * channels, &turned[(i * x.count + j) * channels],
                    channels);
      }
    }
  }

  bool portable = false;

 private:
  // Converts `*pixels` to the format that the other steps take. Returns the bytes per pixel: 1 or
  // 4, or 3 if columns are not mixed.
  uint32_t Prepare(const uint8_t** pixels, PixelFormat format) {
    const uint32_t count = x.end - x.begin;
    const uint8_t* from = *pixels;
    uint8_t* made = prepared.data();
    const uint32_t bytes = format == PixelFormat::kGrey ? 1 : format == PixelFormat::kRgb ? 3 : 4;
    if (format == PixelFormat::kCmyk) {
      MakeRgbx(from, count, made);
      from = *pixels = made;
    }
    if (bytes == 1 ? options->grey : !options->grey && (bytes == 4 || x.taps == 1)) return bytes;
    *pixels = made;
    if (options->grey) {
      MakeGrey(from, bytes, count, made);
      return 1;
    }
    for (uint32_t i = 0; i < count; ++i, from += bytes, made += 4) {
      for (uint32_t c = 0; c < 3; ++c) made[c] = from[bytes == 1 ? 0 : c];
    }
    return 4;
  }

  void Classify(const uint8_t* pixels, uint32_t bytes, uint8_t* mixed) const {
    uint32_t last = UINT32_MAX;
    int number = 0;
    for (uint32_t i = 0; i < x.count; ++i) {
      const uint8_t* pixel = pixels + size_t{x.first[i]} * bytes;
      const uint32_t color = pixel[0] | pixel[1] << 8 | uint32_t{pixel[2]} << 16;
      if (color != last) {  // most pixels have the previous pixel's color
        last = color;
        const auto found = std::lower_bound(colors.begin(), colors.end(), color << 8);
        const bool has = found != colors.end() && *found >> 8 == color;
        if (!has && !options->other) RefuseColor(pixel, i);
        number = has ? static_cast<uint8_t>(*found) : *options->other;
      }
      mixed[i] = static_cast<uint8_t>(number);
    }
  }

  [[noreturn]] void RefuseColor(const uint8_t* pixel, uint32_t entry) const {
    const auto upright = [](const Axis& axis, uint32_t pixel) {
      return axis.mirrored ? axis.side - 1 - axis.begin - pixel : axis.begin + pixel;
    };
    uint32_t column = upright(x, x.first[entry]);
    uint32_t line = upright(y, y.first[next]);
    if (transposed) std::swap(column, line);
    char color[8];
    std::snprintf(color, sizeof color, "#%02x%02x%02x", pixel[0], pixel[1], pixel[2]);
    throw SchemaMismatch("the color " + std::string(color) + " at row " + std::to_string(line) +
                         ", column " + std::to_string(column) +
                         " of the picture has no class: add it to class_map, or give `other`");
  }

  const ImageOptions* options = nullptr;
  Placement placement;
  bool can_reduce = false, transposed = false;
  Axis x, y;  // of the picture as stored
  uint32_t channels = 0;
  uint32_t next = 0;  // the next entry of y
  size_t row_bytes = 0, ring_bytes = 0;
  uint8_t* to = nullptr;
  std::vector<uint8_t> prepared, ring, turned;
  std::vector<const uint8_t*> rows;
  std::vector<uint32_t> colors;  // sorted: color << 8 | class number
};

namespace {

// Returns 0 without the tag.
int ExifOrientation(ByteSpan tiff) {
  const bool big = tiff.size >= 8 && std::memcmp(tiff.data, "MM\0*", 4) == 0;
  if (!big && (tiff.size < 8 || std::memcmp(tiff.data, "II*\0", 4) != 0)) return 0;
  const auto number = [&](size_t at, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value = value << 8 | tiff.data[at + static_cast<size_t>(big ? i : bytes - 1 - i)];
    }
    return value;
  };
  const size_t at = number(4, 4);
  if (at > tiff.size - 2) return 0;
  for (size_t i = 0, entries = number(at, 2); i < entries; ++i) {
    const size_t entry = at + 2 + 12 * i;
    if (entry + 12 > tiff.size) return 0;
    constexpr uint32_t kOrientation = 0x112;
    constexpr uint32_t kLong = 4;
    if (number(entry, 2) != kOrientation) continue;
    const uint32_t value = number(entry + 8, number(entry + 2, 2) == kLong ? 4 : 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 0;
}

// Finds an attribute, tiff:Orientation="6", or an element, <tiff:Orientation>6<.
int XmpOrientation(ByteSpan xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  const std::string_view text(reinterpret_cast<const char*>(xmp.data), xmp.size);
  size_t at = text.find(kName);
  if (at != text.npos) at = text.find_first_not_of(" \t\r\n=\"'>", at + kName.size());
  const char digit = at == text.npos ? '1' : text[at];
  return digit >= '1' && digit <= '8' ? digit - '0' : 1;
}

}  // namespace

int Orientation(ByteSpan exif, ByteSpan xmp) {
  constexpr char kPrefix[] = "Exif\0";  // with the terminating 0
  if (exif.size >= sizeof kPrefix && std::memcmp(exif.data, kPrefix, sizeof kPrefix) == 0) {
    exif = {exif.data + sizeof kPrefix, exif.size - sizeof kPrefix};
  }
  const int orientation = ExifOrientation(exif);
  return orientation != 0 ? orientation : XmpOrientation(xmp);
}

ImageDecoder::ImageDecoder(bool portable) : scratch_(std::make_unique<Scratch>()) {
  scratch_->portable = portable;
}

ImageDecoder::~ImageDecoder() = default;

Extent ImageDecoder::Measure(ByteSpan encoded, uint64_t max_pixels) {
  const StoredPicture picture = Read(encoded, nullptr);
  const Extent stored = picture.extent;
  CheckExtent(stored, max_pixels);
  orientation_ = picture.orientation;
  return picture.orientation >= 5 ? Extent{stored.width, stored.height} : stored;
}

void ImageDecoder::Decode(ByteSpan encoded, const ImageOptions& options, const Placement& placement,
                          uint8_t* to) {
  scratch_->Start(options, placement, IsJpeg(encoded), to);
  Read(encoded, scratch_.get());
  scratch_->Finish();
}

void ImageDecoder::Convert(const uint8_t* pixels, Extent extent, uint32_t channels,
                           const ImageOptions& options, const Placement& placement, uint8_t* to) {
  scratch_->Start(options, placement, false, to);
  const Cut cut = scratch_->Begin({extent});
  const auto format = channels == 1 ? PixelFormat::kGrey : PixelFormat::kRgb;
  for (uint32_t row = cut.top; row < cut.bottom; ++row) {
    const size_t at = (size_t{row} * extent.width + cut.left) * channels;
    scratch_->Take(row, pixels + at, format);
  }
  scratch_->Finish();
}

}  // namespace cachecd
