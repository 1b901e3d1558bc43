// Scales a picture row by row as Pillow's resize does: BILINEAR with antialiasing, or NEAREST.

#ifndef CACHECD_CORE_RESAMPLE_H_
#define CACHECD_CORE_RESAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachecd {

// How to compute the results along one axis from the pixels of a stored picture.
struct Axis {
  uint32_t side = 0;         // pixels of the picture
  uint32_t box = 0;          // the first pixel of the box, in the upright picture
  uint32_t length = 0;       // pixels of the box
  uint32_t scaled = 0;       // positions of the scaled box
  uint32_t from = 0;         // the position of the first result
  uint32_t count = 0;        // number of results
  bool mirrored = false;     // the picture is stored in the opposite direction
  bool flip = false;         // the results are in the opposite direction
  uint32_t denominator = 1;  // the decoder reduces the picture by this factor

  // Computes the fields below. Entries are in the order of the results or, if `by_source`, of the
  // pixels. In the order of pixels, entry i is result count - 1 - i if `reversed`.
  void Make(bool nearest, bool by_source);

  bool reversed = false;
  uint32_t begin = 0, end = 0;  // the range of pixels that is read
  uint32_t taps = 0;            // the most pixels of an entry; 1: no mixing
  // Per entry: the first pixel, relative to `begin`; the number of pixels; and `stride` weights, an
  // even number. The weights of an entry add up to 1 << kBits.
  static constexpr int kBits = 14;
  uint32_t stride = 0;
  std::vector<uint32_t> first, pixels;
  std::vector<int16_t> weights;
};

// The maximum of bytes that are read or written beyond the end.
constexpr size_t kMixPadding = 32;

// Mixes pixels of a row: 3 channels from 4 bytes per pixel, or 1 channel from 1 byte. `portable`:
// does not use AVX2.
void MixColumns(const Axis& axis, const uint8_t* row, uint32_t channels, bool portable,
                uint8_t* to);

// Mixes `count` rows.
void MixRows(const uint8_t* const* rows, const int16_t* weights, uint32_t count, size_t bytes,
             bool portable, uint8_t* to);

}  // namespace cachecd

#endif  // CACHECD_CORE_RESAMPLE_H_
