#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "codecs.h"
#include "errors.h"
#include "resample.h"

#if defined(CACHECD_PNG)
#include <png.h>
#include <zlib.h>

#include <csetjmp>
#endif

namespace cachecd {

bool IsPng(ByteSpan encoded) {
  return encoded.size >= 8 && std::memcmp(encoded.data, "\x89PNG\r\n\x1a\n", 8) == 0;
}

#if !defined(CACHECD_PNG)

bool CanDecodePng() { return false; }

StoredPicture ReadPng(ByteSpan, RowSink*) { return {}; }

#else

bool CanDecodePng() { return true; }

namespace {

uint32_t BigEndian(const uint8_t* from) {
  return uint32_t{from[0]} << 24 | uint32_t{from[1]} << 16 | uint32_t{from[2]} << 8 | from[3];
}

// Returns the XMP packet in a chunk iTXt, or at least its first 64 KiB. Otherwise returns "".
std::string ReadXmp(ByteSpan content) {
  constexpr std::string_view kKeyword{"XML:com.adobe.xmp\0", 18};
  constexpr size_t kMost = 1 << 16;
  const std::string_view text(reinterpret_cast<const char*>(content.data), content.size);
  if (text.size() < 20 || text.substr(0, kKeyword.size()) != kKeyword) return "";
  if (text[kKeyword.size()] == 0) return std::string(text);  // not deflated
  // The method, the language and the keyword in this language come before the packet.
  const size_t at = text.find('\0', text.find('\0', 20) + 1) + 1;
  std::string packet(kMost, '\0');
  uLongf size = kMost;
  uncompress(reinterpret_cast<Bytef*>(packet.data()), &size, content.data + at, text.size() - at);
  return packet;
}

// Walks the chunks up to IEND, because libpng checks no CRC after the last row that it reads. The
// CRC of a chunk that changes no pixel may be wrong.
StoredPicture WalkChunks(ByteSpan encoded, bool check) {
  constexpr size_t kFrame = 12;               // length, type and CRC
  constexpr uint32_t kLongestSide = 1000000;  // libpng's limit
  StoredPicture picture;
  ByteSpan exif;
  std::string xmp;
  const uint8_t* at = encoded.begin() + 8;
  for (;;) {
    const auto left = static_cast<size_t>(encoded.end() - at);
    const size_t size = left < kFrame ? 0 : BigEndian(at);
    if (left < kFrame || size > left - kFrame) throw DamagedImage("the PNG is truncated");
    const ByteSpan content{at + 8, size};
    const auto is = [&](const char* type) { return std::memcmp(at + 4, type, 4) == 0; };
    bool decides = (at[4] & 0x20) == 0 || is("tRNS") || is("eXIf");  // upper case: critical
    if (is("eXIf")) exif = content;
    if (is("iTXt")) {
      const std::string packet = ReadXmp(content);
      if (!packet.empty()) xmp = packet;
      decides = !packet.empty();
    }
    if (check && decides &&
        crc32(0, at + 4, static_cast<uInt>(size + 4)) != BigEndian(content.end())) {
      throw DamagedImage("the PNG is damaged: the CRC of the chunk at byte " +
                         std::to_string(at - encoded.begin()) + " is wrong");
    }
    if (is("IEND")) {
      picture.orientation =
          Orientation(exif, {reinterpret_cast<const uint8_t*>(xmp.data()), xmp.size()});
      return picture;
    }
    if (is("IHDR") && size >= 8) {
      picture.extent = {BigEndian(content.data + 4), BigEndian(content.data)};
      if (std::max(picture.extent.height, picture.extent.width) > kLongestSide) {
        throw SchemaMismatch("the picture has " + ToText(picture.extent) +
                             ", expected sides of at most " + std::to_string(kLongestSide));
      }
    }
    at += kFrame + size;
  }
}

struct PngReader {
  jmp_buf jump;
  png_structp png = nullptr;
  png_infop info = nullptr;
  ByteSpan left;
  char message[128] = "";

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

// Returns false after an error. libpng then returns here by longjmp, so this frame must not have
// objects with destructors while it calls libpng.
bool ReadWith(PngReader* reader, const StoredPicture& picture, RowSink* sink) {
  if (setjmp(reader->jump) != 0) return false;
  png_structp png = reader->png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, reader, OnPngError, OnPngWarning);
  if (png == nullptr) return false;
  png_infop info = reader->info = png_create_info_struct(png);
  if (info == nullptr) return false;
  png_set_read_fn(png, reader, OnPngRead);
  // WalkChunks has checked the CRCs, and the metadata chunks are not needed.
  png_set_crc_action(png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
  const uint32_t height = png_get_image_height(png, info);
  const uint32_t width = png_get_image_width(png, info);
  if (height != picture.extent.height || width != picture.extent.width) {
    png_error(png, "two headers");
  }
  const Cut cut = sink->Begin(picture);
  const bool colored = (png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) != 0;
  const bool palette = png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE;
  if (cut.exact && cut.grey && palette) {
    throw SchemaMismatch(
        "the picture is a PNG file with a palette, and mode='L' with resample='nearest' would "
        "deliver the grey of its colors: give class_map the numbers of the colors");
  }
  if (cut.exact && !colored && png_get_bit_depth(png, info) == 16) {
    throw SchemaMismatch(
        "the picture is a PNG file of 16 bits, but resample='nearest' would keep only 8: store its "
        "values as an array");
  }
  if (palette) png_set_palette_to_rgb(png);
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
  if (row_bytes != width * bytes) png_error(png, "unexpected row size");
  // All rows are kept if the picture has several passes.
  const size_t kept = passes > 1 ? row_bytes : 0;
  sink->row.resize(row_bytes + kept * (height - 1) + kMixPadding);
  uint8_t* rows = sink->row.data();
  for (uint32_t i = 0; i < height * static_cast<uint32_t>(passes - 1); ++i) {
    png_read_row(png, rows + i % height * kept, nullptr);
  }
  for (uint32_t y = 0; y < cut.bottom; ++y) {
    uint8_t* row = rows + y * kept;
    png_read_row(png, row, nullptr);
    if (y >= cut.top) sink->Take(y, row + cut.left * bytes, format);
  }
  return true;
}

}  // namespace

StoredPicture ReadPng(ByteSpan encoded, RowSink* sink) {
  const StoredPicture picture = WalkChunks(encoded, sink != nullptr);
  PngReader reader;
  reader.left = encoded;
  if (sink == nullptr || ReadWith(&reader, picture, sink)) return picture;
  throw DamagedImage("the PNG is damaged: " + std::string(reader.message));
}

#endif

}  // namespace cachecd
