#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "codecs.h"
#include "errors.h"

#if defined(CACHECD_JPEG)
#include <csetjmp>
// After <cstdio>, which they need.
#include <jerror.h>
#include <jpeglib.h>
#endif

namespace cachecd {

bool IsJpeg(ByteSpan encoded) {
  return encoded.size >= 3 && std::memcmp(encoded.data, "\xff\xd8\xff", 3) == 0;
}

#if !defined(CACHECD_JPEG)

bool CanDecodeJpeg() { return false; }

namespace {
[[noreturn]] void NoJpeg() {
  throw SchemaMismatch(
      "the picture is a JPEG file, and cachecd-client was built without libjpeg-turbo: install it "
      "(Debian and Ubuntu: libjpeg62-turbo-dev or libjpeg-turbo8-dev) and build cachecd-client "
      "again");
}
}  // namespace

StoredPicture MeasureJpeg(ByteSpan) { NoJpeg(); }
void DecodeJpeg(ByteSpan, Extent, const Cut&, std::vector<uint8_t>*, RowSink*) { NoJpeg(); }

#else

bool CanDecodeJpeg() { return true; }

StoredPicture MeasureJpeg(ByteSpan encoded) {
  constexpr uint8_t kSof0 = 0xc0, kSof2 = 0xc2, kDht = 0xc4, kSof9 = 0xc9, kSof10 = 0xca,
                    kJpg = 0xc8, kDac = 0xcc, kSof15 = 0xcf, kRst0 = 0xd0, kSoi = 0xd8, kEoi = 0xd9,
                    kSos = 0xda, kApp1 = 0xe1, kTem = 0x01;
  StoredPicture picture;
  bool has_exif = false;
  const uint8_t* at = encoded.begin() + 2;
  const uint8_t* end = encoded.end();
  for (;;) {
    // Bytes between segments are skipped, as libjpeg does.
    while (end - at >= 2 && (at[0] != 0xff || at[1] == 0xff || at[1] == 0)) ++at;
    if (end - at < 4) throw DamagedImage("the JPEG ends within its header");
    const uint8_t marker = at[1];
    at += 2;
    if (marker == kTem || (marker >= kRst0 && marker <= kSoi)) continue;
    if (marker == kSos || marker == kEoi) throw DamagedImage("the JPEG has no frame header");
    const ptrdiff_t size = at[0] << 8 | at[1];
    if (size < 2 || size > end - at) throw DamagedImage("the JPEG ends within its header");
    const ByteSpan segment{at + 2, static_cast<size_t>(size - 2)};
    at += size;
    if (marker == kApp1 && !has_exif && segment.size >= 6 &&
        std::memcmp(segment.data, "Exif\0", 6) == 0) {
      has_exif = true;
      picture.orientation = ExifOrientation({segment.data + 6, segment.size - 6});
    }
    if (marker < kSof0 || marker > kSof15 || marker == kDht || marker == kJpg || marker == kDac) {
      continue;
    }
    if (segment.size < 6) throw DamagedImage("the JPEG has a short frame header");
    const int bits = segment.data[0];
    if (bits != 8 || (marker > kSof2 && marker != kSof9 && marker != kSof10)) {
      throw SchemaMismatch("the picture is a JPEG file of " + std::to_string(bits) +
                           " bits and process " + std::to_string(marker - kSof0) +
                           ", expected 8 bits, baseline or progressive: convert it");
    }
    picture.extent = {static_cast<uint32_t>(segment.data[1] << 8 | segment.data[2]),
                      static_cast<uint32_t>(segment.data[3] << 8 | segment.data[4])};
    return picture;
  }
}

namespace {

// No encoder writes as many; each passes over all blocks.
constexpr int kMostScans = 100;

struct Decompressor {
  jpeg_error_mgr errors;  // first: libjpeg knows the address of this alone
  jmp_buf jump;
  jpeg_progress_mgr progress;
  jpeg_decompress_struct jpeg;
  bool is_unsupported = false;
  char message[JMSG_LENGTH_MAX];

  Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  ~Decompressor() { jpeg_destroy_decompress(&jpeg); }
};

Decompressor* DecompressorOf(j_common_ptr jpeg) {
  return reinterpret_cast<Decompressor*>(jpeg->err);
}

[[noreturn]] void OnJpegError(j_common_ptr jpeg) {
  Decompressor* decompressor = DecompressorOf(jpeg);
  jpeg->err->format_message(jpeg, decompressor->message);
  switch (jpeg->err->msg_code) {
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      decompressor->is_unsupported = true;
      break;
    default:
      break;
  }
  std::longjmp(decompressor->jump, 1);
}

void OnJpegMessage(j_common_ptr jpeg, int level) {
  if (level >= 0) return;  // a trace
  switch (jpeg->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:  // some cameras fill up with zeros
    case JWRN_JFIF_MAJOR:
      return;
    default:
      OnJpegError(jpeg);
  }
}

void OnJpegProgress(j_common_ptr jpeg) {
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(jpeg);
  if (decompress->input_scan_number <= kMostScans) return;
  std::snprintf(DecompressorOf(jpeg)->message, JMSG_LENGTH_MAX, "more than %d scans", kMostScans);
  std::longjmp(DecompressorOf(jpeg)->jump, 1);
}

Decompressor::Decompressor() : progress(), jpeg() {
  jpeg.err = jpeg_std_error(&errors);
  errors.error_exit = OnJpegError;
  errors.emit_message = OnJpegMessage;
  progress.progress_monitor = OnJpegProgress;
  message[0] = 0;
}

// Pixels that fancy upsampling may look at beyond a cut, which then come out as in the whole
// picture.
constexpr uint32_t kMargin = 2;

// Aligned rows libjpeg-turbo writes past the processor's caches, from where they are read at once:
// a quarter of all the time. Memory is aligned to 16 bytes.
constexpr size_t kUnaligned = 8;

PixelFormat ChooseFormat(jpeg_decompress_struct* jpeg, bool grey) {
  switch (jpeg->jpeg_color_space) {
    case JCS_CMYK:
    case JCS_YCCK:
      jpeg->out_color_space = JCS_CMYK;
      return PixelFormat::kCmyk;
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr:
      jpeg->out_color_space = grey ? JCS_GRAYSCALE : JCS_EXT_RGBX;
      return grey ? PixelFormat::kGrey : PixelFormat::kRgbx;
    default:
      throw SchemaMismatch("the picture is a JPEG file of " + std::to_string(jpeg->num_components) +
                           " components, expected 1, 3 or 4: convert it");
  }
}

// False after an error. libjpeg returns here by longjmp, so no frame from here on may have anything
// to destroy while it calls libjpeg.
bool ReadJpeg(Decompressor* decompressor, ByteSpan encoded, Extent stored, const Cut& cut,
              std::vector<uint8_t>* row, RowSink* sink) {
  jpeg_decompress_struct* jpeg = &decompressor->jpeg;
  if (setjmp(decompressor->jump) != 0) return false;
  jpeg_create_decompress(jpeg);
  jpeg->progress = &decompressor->progress;
  jpeg_mem_src(jpeg, encoded.data, encoded.size);
  jpeg_read_header(jpeg, TRUE);
  if (jpeg->image_width != stored.width || jpeg->image_height != stored.height) {
    throw DamagedImage("the JPEG has two frame headers");
  }
  const PixelFormat format = ChooseFormat(jpeg, cut.grey);
  jpeg->scale_num = 1;
  jpeg->scale_denom = cut.denominator;
  jpeg_start_decompress(jpeg);
  JDIMENSION left = cut.left - std::min(cut.left, kMargin);
  JDIMENSION width = std::min(cut.right + kMargin, jpeg->output_width) - left;
  if (width != jpeg->output_width) jpeg_crop_scanline(jpeg, &left, &width);
  const size_t bytes = static_cast<size_t>(jpeg->output_components);
  row->resize(kUnaligned + width * bytes + cut.padding);
  if (cut.top != 0) jpeg_skip_scanlines(jpeg, cut.top);
  uint8_t* to = row->data() + kUnaligned;
  for (uint32_t y = cut.top; y < cut.bottom; ++y) {
    jpeg_read_scanlines(jpeg, &to, 1);
    sink->Take(y, to + (cut.left - left) * bytes, format);
  }
  return true;
}

}  // namespace

void DecodeJpeg(ByteSpan encoded, Extent stored, const Cut& cut, std::vector<uint8_t>* row,
                RowSink* sink) {
  Decompressor decompressor;
  if (ReadJpeg(&decompressor, encoded, stored, cut, row, sink)) return;
  const std::string message = decompressor.message;
  if (!decompressor.is_unsupported) throw DamagedImage("the JPEG is damaged: " + message);
  throw SchemaMismatch("the picture is a JPEG file of a kind that is not supported: " + message);
}

#endif

}  // namespace cachecd
