#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "codecs.h"
#include "errors.h"
#include "resample.h"

#if defined(CACHECD_JPEG)
#include <csetjmp>
#include <cstdio>
// These headers need <cstdio> before them.
#include <jerror.h>
#include <jpeglib.h>
#endif

namespace cachecd {

bool IsJpeg(ByteSpan encoded) {
  return encoded.size >= 3 && std::memcmp(encoded.data, "\xff\xd8\xff", 3) == 0;
}

#if !defined(CACHECD_JPEG)

bool CanDecodeJpeg() { return false; }

StoredPicture ReadJpeg(ByteSpan, RowSink*) { return {}; }

#else

bool CanDecodeJpeg() { return true; }

namespace {

constexpr int kMostScans = 100;  // no encoder writes as many, and each scan reads all blocks
// Fancy upsampling reads this many pixels beyond a cut.
constexpr uint32_t kMargin = 2;
// libjpeg-turbo writes aligned rows past the processor's caches, but rows are read at once: that
// costs a sixth of all time. So rows start at this offset from memory aligned to 16 bytes.
constexpr size_t kUnaligned = 8;

struct Decompressor {
  jpeg_error_mgr errors;  // first member: libjpeg knows only its address
  jmp_buf jump;
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};
  char message[JMSG_LENGTH_MAX];
  bool is_unsupported = false;
  bool is_cut = false;  // the bytes end without the marker EOI

  ~Decompressor() { jpeg_destroy_decompress(&jpeg); }
};

[[noreturn]] void OnJpegError(j_common_ptr jpeg) {
  auto* decompressor = reinterpret_cast<Decompressor*>(jpeg->err);
  jpeg->err->format_message(jpeg, decompressor->message);
  const int code = jpeg->err->msg_code;
  decompressor->is_unsupported = code == JERR_ARITH_NOTIMPL || code == JERR_BAD_PRECISION ||
                                 code == JERR_CONVERSION_NOTIMPL || code == JERR_NOTIMPL ||
                                 code == JERR_NOT_COMPILED || code == JERR_SOF_UNSUPPORTED;
  std::longjmp(decompressor->jump, 1);
}

// Returns true if libjpeg omits or guesses pixels after this warning.
bool IsDamage(j_common_ptr common) {
  auto* jpeg = reinterpret_cast<j_decompress_ptr>(common);
  const int* values = jpeg->err->msg_parm.i;
  switch (jpeg->err->msg_code) {
    case JWRN_ADOBE_XFORM:     // the number is unknown: colors as without Adobe's marker
    case JWRN_BOGUS_ICC:       // no profile is applied
    case JWRN_JFIF_MAJOR:      // the version changes no pixel
    case JWRN_NOT_SEQUENTIAL:  // cameras write Se = 0; only progressive scans use these fields
      return false;
    case JWRN_EXTRANEOUS_DATA:  // padding after a segment; before RST0 to RST7 the scan was misread
      return values[1] >= JPEG_RST0 && values[1] < JPEG_EOI;
    case JWRN_BOGUS_PROGRESSION:  // bits are lost, unless DC may still follow AC: values[1] = 0
      return jpeg->Ss == 0 || values[1] != 0;
    case JWRN_JPEG_EOF:  // if Huffman codes are missing, JWRN_HIT_MARKER follows; or MissesScan
      reinterpret_cast<Decompressor*>(jpeg->err)->is_cut = true;
      return jpeg->arith_code;  // this decoder reads zeros beyond the end, without a warning
    default:  // ARITH_BAD_CODE, HIT_MARKER, HUFF_BAD_CODE, MUST_RESYNC, TOO_MUCH_DATA, new ones
      return true;
  }
}

void OnJpegMessage(j_common_ptr jpeg, int level) {
  if (level < 0 && IsDamage(jpeg)) OnJpegError(jpeg);
}

// Returns true if a component has no scan, or lacks bits of its coefficients. In a file without
// EOI, any missing bit counts. Otherwise only the first coefficients count, which libjpeg would
// guess.
bool MissesScan(const jpeg_decompress_struct& jpeg, bool is_cut) {
  for (int i = 0; i < jpeg.num_components; ++i) {
    if (jpeg.comp_info[i].quant_table == nullptr) return true;  // set by the first scan
    if (!jpeg.progressive_mode) continue;
    constexpr int kGuessed = 10;
    const int* bits = jpeg.coef_bits[i];  // of each coefficient, bits to come; -1: all
    const auto is_missing = [](int count) { return count != 0; };
    if (std::any_of(bits, bits + (is_cut ? DCTSIZE2 : kGuessed), is_missing)) return true;
  }
  return false;
}

int ReadOrientation(jpeg_saved_marker_ptr marker) {
  ByteSpan exif, xmp;
  for (; marker != nullptr; marker = marker->next) {
    const auto begins = [&](std::string_view with) {
      return marker->data_length >= with.size() &&
             std::memcmp(marker->data, with.data(), with.size()) == 0;
    };
    const ByteSpan content{marker->data, marker->data_length};
    if (exif.size == 0 && begins({"Exif\0", 6})) exif = content;
    if (begins({"http://ns.adobe.com/xap/1.0/", 29})) xmp = content;
  }
  return Orientation(exif, xmp);
}

void OnJpegProgress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
  auto* decompressor = reinterpret_cast<Decompressor*>(jpeg->err);
  std::snprintf(decompressor->message, JMSG_LENGTH_MAX, "more than %d scans", kMostScans);
  std::longjmp(decompressor->jump, 1);
}

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

// Returns false after an error. libjpeg then returns here by longjmp, so this frame must not have
// objects with destructors while it calls libjpeg.
bool ReadWith(Decompressor* decompressor, ByteSpan encoded, StoredPicture* picture, RowSink* sink) {
  jpeg_decompress_struct* jpeg = &decompressor->jpeg;
  if (setjmp(decompressor->jump) != 0) return false;
  jpeg->err = jpeg_std_error(&decompressor->errors);
  jpeg->err->error_exit = OnJpegError;
  jpeg->err->emit_message = OnJpegMessage;
  jpeg_create_decompress(jpeg);
  decompressor->progress.progress_monitor = OnJpegProgress;
  jpeg->progress = &decompressor->progress;
  jpeg_mem_src(jpeg, encoded.data, encoded.size);
  jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(jpeg, TRUE);
  if (jpeg->data_precision != 8) ERREXIT1(jpeg, JERR_BAD_PRECISION, jpeg->data_precision);
  picture->extent = {jpeg->image_height, jpeg->image_width};
  picture->orientation = ReadOrientation(jpeg->marker_list);
  if (sink == nullptr) return true;
  const Cut cut = sink->Begin(*picture);
  const PixelFormat format = ChooseFormat(jpeg, cut.grey);
  jpeg->scale_num = 1;
  jpeg->scale_denom = cut.denominator;
  jpeg_start_decompress(jpeg);  // reads all scans if there are several
  if (jpeg_has_multiple_scans(jpeg) && MissesScan(*jpeg, decompressor->is_cut)) {
    std::snprintf(decompressor->message, JMSG_LENGTH_MAX, "a scan is missing");
    return false;
  }
  JDIMENSION left = cut.left - std::min(cut.left, kMargin);
  JDIMENSION width = std::min(cut.right + kMargin, jpeg->output_width) - left;
  if (width != jpeg->output_width) jpeg_crop_scanline(jpeg, &left, &width);
  const auto bytes = static_cast<size_t>(jpeg->output_components);
  sink->row.resize(kUnaligned + width * bytes + kMixPadding);
  if (cut.top != 0) jpeg_skip_scanlines(jpeg, cut.top);
  uint8_t* row = sink->row.data() + kUnaligned;
  for (uint32_t y = cut.top; y < cut.bottom; ++y) {
    jpeg_read_scanlines(jpeg, &row, 1);
    sink->Take(y, row + (cut.left - left) * bytes, format);
  }
  return true;
}

}  // namespace

StoredPicture ReadJpeg(ByteSpan encoded, RowSink* sink) {
  Decompressor decompressor;
  StoredPicture picture;
  if (ReadWith(&decompressor, encoded, &picture, sink)) return picture;
  const std::string message = decompressor.message;
  if (!decompressor.is_unsupported) throw DamagedImage("the JPEG is damaged: " + message);
  throw SchemaMismatch("the picture is a JPEG file that is not supported: " + message +
                       ": convert it");
}

#endif

}  // namespace cachecd
