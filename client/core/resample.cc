#include "resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cachecd {

void Axis::Make(bool nearest, bool by_source) {
  reversed = flip != mirrored;
  first.resize(count);
  pixels.assign(count, 1);
  const double step = static_cast<double>(length) / scaled / denominator;
  const double support = nearest ? 0 : std::max(step, 1.0);
  const double falling = 1 / support;
  const uint32_t stored = mirrored ? side - box - length : box;
  const uint32_t low = stored / denominator;
  const uint32_t high = (stored + length - 1) / denominator + 1;
  const double offset = static_cast<double>(stored) / denominator;
  const uint32_t most = static_cast<uint32_t>(std::ceil(support)) * 2 + 4;
  weights.assign(size_t{count} * most, 0);
  taps = 1;
  double at = step / 2;  // as Pillow does for NEAREST, steps are summed
  for (uint32_t i = 0; nearest && i < from; ++i) at += step;
  for (uint32_t i = 0; i < count; ++i, at += step) {
    if (nearest) {
      const uint32_t upright = box + std::min(static_cast<uint32_t>(at), length - 1);
      const uint32_t entry = (by_source ? mirrored : flip) ? count - 1 - i : i;
      first[entry] = mirrored ? side - 1 - upright : upright;
      continue;
    }
    const uint32_t position = mirrored ? scaled - from - count + i : from + i;
    const double center = offset + (position + 0.5) * step;
    const auto begins = static_cast<uint32_t>(std::max<double>(center - support + 0.5, low));
    const auto ends = static_cast<uint32_t>(std::min<double>(center + support + 0.5, high));
    const auto part = [&](uint32_t pixel) {
      return std::max(0.0, 1 - std::abs(pixel + 0.5 - center) * falling);
    };
    double sum = 0;
    for (uint32_t pixel = begins; pixel < ends; ++pixel) sum += part(pixel);
    const uint32_t entry = !by_source && reversed ? count - 1 - i : i;
    int16_t* weight = weights.data() + size_t{entry} * most;
    uint32_t used = 0;  // the entry's pixels, without zero weights at either end
    // Running sums are rounded, not single weights, so that any number of weights adds up exactly.
    double exact = 0;
    int rounded = 0;
    first[entry] = begins;
    for (uint32_t pixel = begins; pixel < ends; ++pixel) {
      exact += part(pixel);
      const int next = static_cast<int>(exact * ((1 << kBits) / sum) + 0.5);
      if (next == 0) ++first[entry];
      if (next != 0) weight[pixel - first[entry]] = static_cast<int16_t>(next - rounded);
      if (next != rounded) used = pixel - first[entry] + 1;
      rounded = next;
    }
    pixels[entry] = used;
    taps = std::max(taps, used);
  }
  stride = taps <= 4 ? 4 : (taps + 1) / 2 * 2;
  for (uint32_t i = 0; i < count; ++i) {
    std::copy_n(weights.begin() + i * most, stride, weights.begin() + i * stride);
  }
  begin = *std::min_element(first.begin(), first.end());
  end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    end = std::max(end, first[i] + pixels[i]);
    first[i] -= begin;
  }
}

namespace {

constexpr int kHalf = 1 << (Axis::kBits - 1);

void MixColumnsPortable(const Axis& axis, const uint8_t* row, uint32_t channels, uint8_t* to) {
  const size_t bytes = channels == 1 ? 1 : 4;
  const int16_t* weights = axis.weights.data();
  for (uint32_t i = 0; i < axis.count; ++i, weights += axis.stride) {
    for (uint32_t c = 0; c < channels; ++c, ++to) {
      const uint8_t* pixel = row + axis.first[i] * bytes + c;
      int sum = kHalf;
      for (uint32_t tap = 0; tap < axis.pixels[i]; ++tap) sum += weights[tap] * pixel[tap * bytes];
      *to = static_cast<uint8_t>(sum >> Axis::kBits);
    }
  }
}

void MixRowsPortable(const uint8_t* const* rows, const int16_t* weights, uint32_t count,
                     size_t bytes, uint8_t* to) {
  for (size_t at = 0; at < bytes; ++at) {
    int sum = kHalf;
    for (uint32_t i = 0; i < count; ++i) sum += weights[i] * rows[i][at];
    to[at] = static_cast<uint8_t>(sum >> Axis::kBits);
  }
}

#if defined(__x86_64__)
#define CACHECD_MIX __attribute__((target("avx2")))

// Returns two weights in each 32 bits, for two pixels that are mixed at once.
CACHECD_MIX inline __m128i WeightPair(const int16_t* weights) {
  int pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm_set1_epi32(pair);
}

// `fixed`: the number of taps; 0: the axis's own number.
template <uint32_t fixed>
CACHECD_MIX void MixColors(const Axis& axis, const uint8_t* row, uint8_t* to) {
  // Converts two pixels of 4 bytes to 4 pairs of 16 bits, one pair per channel.
  const __m128i interleave = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
  // Copies, because the compiler must assume that `to` points into the axis.
  const uint32_t* first = axis.first.data();
  const int16_t* weights = axis.weights.data();
  const uint32_t stride = axis.stride;
  for (uint32_t i = 0, count = axis.count; i < count; ++i, weights += stride, to += 3) {
    const uint8_t* pixel = row + size_t{first[i]} * 4;
    // At the picture's edge, a result has fewer pixels than others, and the row ends behind them.
    const uint32_t taps = fixed != 0 ? fixed : axis.pixels[i];
    __m128i sum = _mm_set1_epi32(kHalf);
    for (uint32_t tap = 0; tap < taps; tap += 2) {
      const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixel + 4 * tap));
      sum = _mm_add_epi32(
          sum, _mm_madd_epi16(_mm_shuffle_epi8(two, interleave), WeightPair(weights + tap)));
    }
    sum = _mm_packs_epi32(_mm_srai_epi32(sum, Axis::kBits), sum);
    const int made = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    std::memcpy(to, &made, sizeof made);  // the next result overwrites the fourth byte
  }
}

void MixColorsAvx2(const Axis& axis, const uint8_t* row, uint8_t* to) {
  (axis.taps <= 2 ? MixColors<2> : axis.taps <= 4 ? MixColors<4> : MixColors<0>)(axis, row, to);
}

// Reads each row in whole steps, so possibly beyond `bytes`.
CACHECD_MIX void MixRowsAvx2(const uint8_t* const* rows, const int16_t* weights, uint32_t count,
                             size_t bytes, uint8_t* to) {
  const __m256i zero = _mm256_setzero_si256();
  for (size_t at = 0; at < bytes; at += sizeof zero) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (uint32_t i = 0; i < count; i += 2) {
      const auto load = [&](uint32_t row) CACHECD_MIX {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[row] + at));
      };
      const __m256i first = load(i);
      const __m256i second = i + 1 < count ? load(i + 1) : zero;
      const __m256i pair = _mm256_broadcastsi128_si256(WeightPair(weights + i));
      const __m256i low = _mm256_unpacklo_epi8(first, second);
      const __m256i high = _mm256_unpackhi_epi8(first, second);
      const __m256i parts[] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                               _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
      for (int j = 0; j < 4; ++j) {
        sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(parts[j], pair));
      }
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, Axis::kBits);
    const __m256i made = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                             _mm256_packs_epi32(sums[2], sums[3]));
    if (bytes - at < sizeof made) {
      std::memcpy(to + at, &made, bytes - at);
    } else {
      std::memcpy(to + at, &made, sizeof made);
    }
  }
}

bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
#else
void MixColorsAvx2(const Axis&, const uint8_t*, uint8_t*) {}
constexpr auto MixRowsAvx2 = MixRowsPortable;
bool HasAvx2() { return false; }
#endif

}  // namespace

void MixColumns(const Axis& axis, const uint8_t* row, uint32_t channels, bool portable,
                uint8_t* to) {
  if (channels == 3 && !portable && HasAvx2()) return MixColorsAvx2(axis, row, to);
  MixColumnsPortable(axis, row, channels, to);
}

void MixRows(const uint8_t* const* rows, const int16_t* weights, uint32_t count, size_t bytes,
             bool portable, uint8_t* to) {
  (!portable && HasAvx2() ? MixRowsAvx2 : MixRowsPortable)(rows, weights, count, bytes, to);
}

}  // namespace cachecd
