#include <algorithm>
#include <cstring>
#include <string>

#include "codecs.h"
#include "errors.h"

#if defined(CACHECD_PNG)
#include <png.h>
#include <zlib.h>

#include <csetjmp>
#endif

namespace cachecd {
namespace {
constexpr char kSignature[] = "\x89PNG\r\n\x1a\n";
constexpr size_t kSignatureSize = sizeof kSignature - 1;
}  // namespace

bool IsPng(ByteSpan encoded) {
  return encoded.size >= kSignatureSize &&
         std::memcmp(encoded.data, kSignature, kSignatureSize) == 0;
}

#if !defined(CACHECD_PNG)

bool CanDecodePng() { return false; }

namespace {
[[noreturn]] void NoPng() {
  throw SchemaMismatch(
      "the picture is a PNG file, and cachecd-client was built without libpng: install it (Debian "
      "and Ubuntu: libpng-dev) and build cachecd-client again");
}
}  // namespace

StoredPicture MeasurePng(ByteSpan) { NoPng(); }
void DecodePng(ByteSpan, const Cut&, std::vector<uint8_t>*, RowSink*) { NoPng(); }

#else

bool CanDecodePng() { return true; }

namespace {

constexpr uint32_t kLongestSide = 1000000;  // libpng's own limit

uint32_t BigEndian(const uint8_t* from) {
  return uint32_t{from[0]} << 24 | uint32_t{from[1]} << 16 | uint32_t{from[2]} << 8 | from[3];
}

bool Is(const uint8_t* type, const char* name) { return std::memcmp(type, name, 4) == 0; }

// Calls visit(type, content) for each chunk up to IEND, whose CRCs it checks if asked to.
template <typename Visit>
void WalkChunks(ByteSpan encoded, bool check, const Visit& visit) {
  constexpr size_t kFrame = 12;  // length, type and CRC
  const uint8_t* at = encoded.begin() + kSignatureSize;
  for (;;) {
    const auto left = static_cast<size_t>(encoded.end() - at);
    const size_t size = left < kFrame ? 0 : BigEndian(at);
    if (left < kFrame || size > left - kFrame) throw DamagedImage("the PNG is truncated");
    const uint8_t* type = at + 4;
    const ByteSpan content{at + 8, size};
    if (check && crc32(0, type, static_cast<uInt>(size + 4)) != BigEndian(content.end())) {
      throw DamagedImage("the PNG is damaged: the CRC of the chunk at byte " +
                         std::to_string(at - encoded.begin()) + " is wrong");
    }
    if (Is(type, "IEND")) return;
    visit(type, content);
    at += kFrame + size;
  }
}

}  // namespace

StoredPicture MeasurePng(ByteSpan encoded) {
  StoredPicture picture;
  WalkChunks(encoded, false, [&](const uint8_t* type, ByteSpan content) {
    if (Is(type, "IHDR") && content.size >= 8) {
      picture.extent = {BigEndian(content.data + 4), BigEndian(content.data)};
      if (std::max(picture.extent.height, picture.extent.width) > kLongestSide) {
        throw SchemaMismatch("the picture has " + ExtentText(picture.extent) +
                             ", expected sides of at most " + std::to_string(kLongestSide));
      }
    } else if (Is(type, "eXIf")) {
      picture.orientation = ExifOrientation(content);
    }
  });
  return picture;
}

namespace {

struct PngReader {
  jmp_buf jump;
  png_structp png = nullptr;
  png_infop info = nullptr;
  ByteSpan left;
  char message[128] = "";

  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void OnPngError(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::strncpy(reader->message, message, sizeof reader->message - 1);
  std::longjmp(reader->jump, 1);
}

void OnPngWarning(png_structp, png_const_charp) {}

void OnPngRead(png_structp png, png_bytep to, png_size_t size) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (size > reader->left.size) png_error(png, "truncated");
  std::memcpy(to, reader->left.data, size);
  reader->left = {reader->left.data + size, reader->left.size - size};
}

// False after an error. libpng returns here by longjmp, so no frame from here on may have anything
// to destroy while it calls libpng.
bool ReadPng(PngReader* reader, const Cut& cut, std::vector<uint8_t>* rows, RowSink* sink) {
  if (setjmp(reader->jump) != 0) return false;
  reader->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reader, OnPngError, OnPngWarning);
  if (reader->png == nullptr) return false;
  png_structp png = reader->png;
  reader->info = png_create_info_struct(png);
  if (reader->info == nullptr) return false;
  png_infop info = reader->info;
  png_set_read_fn(png, reader, OnPngRead);
  // WalkChunks has checked the CRCs. What else the file says of the picture is not needed.
  png_set_crc_action(png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
  const bool colored = (png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) != 0;
  if (png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_strip_16(png);
  if (colored) {
    png_set_filler(png, 0xff, PNG_FILLER_AFTER);
  } else {
    png_set_strip_alpha(png);
  }
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const auto format = colored ? PixelFormat::kRgbx : PixelFormat::kGrey;
  const size_t bytes = colored ? 4 : 1;
  const size_t row_bytes = png_get_rowbytes(png, info);
  if (row_bytes != png_get_image_width(png, info) * bytes) png_error(png, "unexpected row size");
  const bool whole = passes > 1;
  const uint32_t height = png_get_image_height(png, info);
  rows->resize(row_bytes * (whole ? height : 1) + cut.padding);
  for (int pass = 1; pass < passes; ++pass) {
    for (uint32_t y = 0; y < height; ++y) png_read_row(png, rows->data() + y * row_bytes, nullptr);
  }
  for (uint32_t y = 0; y < cut.bottom; ++y) {
    uint8_t* row = rows->data() + (whole ? y * row_bytes : 0);
    png_read_row(png, row, nullptr);
    if (y >= cut.top) sink->Take(y, row + cut.left * bytes, format);
  }
  return true;
}

}  // namespace

void DecodePng(ByteSpan encoded, const Cut& cut, std::vector<uint8_t>* row, RowSink* sink) {
  WalkChunks(encoded, true, [](const uint8_t*, ByteSpan) {});
  PngReader reader;
  reader.left = encoded;
  if (ReadPng(&reader, cut, row, sink)) return;
  throw DamagedImage("the PNG is damaged: " + std::string(reader.message));
}

#endif

}  // namespace cachecd
