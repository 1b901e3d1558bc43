#include "resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cachecd {

bool AxisPlan::operator==(const AxisPlan& other) const {
  const auto fields = [](const AxisPlan& plan) {
    return std::tie(plan.side, plan.box, plan.length, plan.scaled, plan.from, plan.count,
                    plan.denominator, plan.mirrored, plan.flip, plan.nearest);
  };
  return fields(*this) == fields(other);
}

void Axis::Make(const AxisPlan& plan, bool by_source) {
  if (plan == plan_ && by_source == by_source_) return;
  plan_ = plan;
  by_source_ = by_source;
  reversed_ = plan.flip != plan.mirrored;
  first_.assign(plan.count + kLanes, 0);
  pixels_.assign(plan.count, 1);
  if (plan.nearest) {
    MakeNearest();
  } else {
    MakeBilinear();
  }
  begin_ = *std::min_element(first_.begin(), first_.end() - kLanes);
  end_ = 0;
  for (uint32_t i = 0; i < plan.count; ++i) {
    end_ = std::max(end_, first_[i] + pixels_[i]);
    first_[i] -= begin_;
  }
}

uint32_t Axis::upright(uint32_t entry) const {
  const uint32_t stored = begin_ + first_[entry];
  return plan_.mirrored ? plan_.side - 1 - stored : stored;
}

void Axis::MakeNearest() {
  taps_ = 1;
  // As Pillow does, which adds up the positions.
  const double step = static_cast<double>(plan_.length) / plan_.scaled;
  double at = step * 0.5;
  constexpr uint32_t kMostSums = 1 << 20;
  if (plan_.from > kMostSums) {
    at += step * plan_.from;
  } else {
    for (uint32_t i = 0; i < plan_.from; ++i) at += step;
  }
  for (uint32_t i = 0; i < plan_.count; ++i, at += step) {
    const uint32_t upright = plan_.box + std::min(static_cast<uint32_t>(at), plan_.length - 1);
    const uint32_t entry = (by_source_ ? plan_.mirrored : plan_.flip) ? plan_.count - 1 - i : i;
    first_[entry] = plan_.mirrored ? plan_.side - 1 - upright : upright;
  }
}

void Axis::MakeBilinear() {
  const double step = static_cast<double>(plan_.length) / plan_.scaled / plan_.denominator;
  const double support = std::max(step, 1.0);
  const uint32_t stored = plan_.mirrored ? plan_.side - plan_.box - plan_.length : plan_.box;
  const double offset = static_cast<double>(stored) / plan_.denominator;
  const uint32_t low = stored / plan_.denominator;
  const uint32_t high = (stored + plan_.length - 1) / plan_.denominator + 1;
  const uint32_t from = plan_.mirrored ? plan_.scaled - plan_.from - plan_.count : plan_.from;
  stride_ = (static_cast<uint32_t>(std::ceil(support)) * 2 + kGroup) / kGroup * kGroup;
  weights_.assign(size_t{plan_.count + kLanes} * stride_, 0);
  parts_.resize(stride_ + 1);
  taps_ = 1;
  for (uint32_t i = 0; i < plan_.count; ++i) {
    const double center = offset + (from + i + 0.5) * step;
    uint32_t begin = static_cast<uint32_t>(std::max<double>(center - support + 0.5, low));
    const uint32_t end = static_cast<uint32_t>(std::min<double>(center + support + 0.5, high));
    double sum = 0;
    uint32_t used = 0;  // pixels without the last ones that have no weight
    for (uint32_t pixel = begin; pixel < end; ++pixel) {
      const double part = std::max(0.0, 1 - std::abs(pixel + 0.5 - center) / support);
      if (part == 0 && used == 0) {
        ++begin;
        continue;
      }
      sum += part;
      parts_[pixel - begin] = sum;
      if (part > 0) used = pixel - begin + 1;
    }
    const uint32_t entry = !by_source_ && reversed_ ? plan_.count - 1 - i : i;
    first_[entry] = begin;
    pixels_[entry] = used;
    taps_ = std::max(taps_, used);
    // Sums are rounded and not parts, so that however many weights there are, they add up to 1.
    int16_t* weights = weights_.data() + size_t{entry} * stride_;
    const double share = (1 << kBits) / sum;
    int rounded = 0;
    for (uint32_t tap = 0; tap < used; ++tap) {
      const int next = static_cast<int>(parts_[tap] * share + 0.5);
      weights[tap] = static_cast<int16_t>(next - rounded);
      rounded = next;
    }
  }
}

namespace {

constexpr int kHalf = 1 << (Axis::kBits - 1);

void MixColumnsPortable(const Axis& axis, const uint8_t* row, uint32_t channels, uint8_t* to) {
  const size_t bytes = channels == 1 ? 1 : 4;
  for (uint32_t i = 0; i < axis.size(); ++i, to += channels) {
    const uint8_t* pixel = row + axis.first(i) * bytes;
    const int16_t* weights = axis.weights(i);
    int sums[3] = {kHalf, kHalf, kHalf};
    for (uint32_t tap = 0; tap < axis.pixels(i); ++tap, pixel += bytes) {
      for (uint32_t c = 0; c < channels; ++c) sums[c] += weights[tap] * pixel[c];
    }
    for (uint32_t c = 0; c < channels; ++c) to[c] = static_cast<uint8_t>(sums[c] >> Axis::kBits);
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
#define CACHECD_MIX_TARGET __attribute__((target("avx2")))

// Two weights, of pixels that follow one another, in each 32 bits.
CACHECD_MIX_TARGET inline __m128i WeightPair(const int16_t* weights) {
  int pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm_set1_epi32(pair);
}

// The sums of the channels of one result. `fixed`: so many pairs of pixels, or 0 for `pairs`.
template <uint32_t fixed>
CACHECD_MIX_TARGET inline __m128i MixPixels(const uint8_t* pixel, const int16_t* weights,
                                            uint32_t pairs) {
  // Two pixels of four bytes: the 16 bits of a channel beside those of the same channel.
  const __m128i interleave = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
  __m128i sum = _mm_set1_epi32(kHalf);
  for (uint32_t i = 0; i < (fixed != 0 ? fixed : pairs); ++i, pixel += 8, weights += 2) {
    const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixel));
    sum =
        _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(two, interleave), WeightPair(weights)));
  }
  return _mm_srai_epi32(sum, Axis::kBits);
}

template <uint32_t fixed>
CACHECD_MIX_TARGET void MixColors(const Axis& axis, const uint8_t* row, uint8_t* to) {
  const __m128i drop_fourth = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const uint32_t pairs = (axis.taps() + 1) / 2;
  // Copies, as bytes that are written to `to` might be the axis's.
  const uint32_t* first = axis.first();
  const int16_t* weights = axis.weights(0);
  const size_t stride = axis.stride();
  const uint32_t size = axis.size();
  const auto mix = [&](uint32_t i) CACHECD_MIX_TARGET {
    return MixPixels<fixed>(row + size_t{first[i]} * 4, weights + i * stride, pairs);
  };
  for (uint32_t i = 0; i < size; i += 4, to += 12) {
    const __m128i low = _mm_packs_epi32(mix(i), mix(i + 1));
    const __m128i high = _mm_packs_epi32(mix(i + 2), mix(i + 3));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_shuffle_epi8(_mm_packus_epi16(low, high), drop_fourth));
  }
}

CACHECD_MIX_TARGET void MixGreys(const Axis& axis, const uint8_t* row, uint8_t* to) {
  const auto mix = [&](uint32_t i) CACHECD_MIX_TARGET {
    const uint8_t* pixel = row + axis.first(i);
    const int16_t* weights = axis.weights(i);
    __m128i sum = _mm_setzero_si128();
    for (uint32_t tap = 0; tap < axis.taps(); tap += 8) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixel + tap));
      const auto* of = reinterpret_cast<const __m128i*>(weights + tap);
      sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_cvtepu8_epi16(eight), _mm_loadu_si128(of)));
    }
    return sum;
  };
  for (uint32_t i = 0; i < axis.size(); i += 4, to += 4) {
    const __m128i sums =
        _mm_hadd_epi32(_mm_hadd_epi32(mix(i), mix(i + 1)), _mm_hadd_epi32(mix(i + 2), mix(i + 3)));
    const __m128i made = _mm_srai_epi32(_mm_add_epi32(sums, _mm_set1_epi32(kHalf)), Axis::kBits);
    const int four = _mm_cvtsi128_si32(_mm_packus_epi16(_mm_packs_epi32(made, made), made));
    std::memcpy(to, &four, sizeof four);
  }
}

void MixColumnsAvx2(const Axis& axis, const uint8_t* row, uint32_t channels, uint8_t* to) {
  if (channels == 1) return MixGreys(axis, row, to);
  (axis.taps() <= 2 ? MixColors<1> : axis.taps() <= 4 ? MixColors<2> : MixColors<0>)(axis, row, to);
}

CACHECD_MIX_TARGET void MixRowsAvx2(const uint8_t* const* rows, const int16_t* weights,
                                    uint32_t count, size_t bytes, uint8_t* to) {
  constexpr size_t kStep = 32;
  if (bytes < kStep) return MixRowsPortable(rows, weights, count, bytes, to);
  const __m256i zero = _mm256_setzero_si256();
  for (size_t at = 0;;) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (uint32_t i = 0; i < count; i += 2) {
      const auto load = [&](uint32_t row) CACHECD_MIX_TARGET {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[row] + at));
      };
      const __m256i first = load(i);
      const __m256i second = i + 1 < count ? load(i + 1) : zero;
      const __m256i pair = _mm256_broadcastsi128_si256(WeightPair(weights + i));
      const __m256i low = _mm256_unpacklo_epi8(first, second);
      const __m256i high = _mm256_unpackhi_epi8(first, second);
      const auto add = [&](__m256i* sum, __m256i two) CACHECD_MIX_TARGET {
        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(two, pair));
      };
      add(&sums[0], _mm256_unpacklo_epi8(low, zero));
      add(&sums[1], _mm256_unpackhi_epi8(low, zero));
      add(&sums[2], _mm256_unpacklo_epi8(high, zero));
      add(&sums[3], _mm256_unpackhi_epi8(high, zero));
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, Axis::kBits);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                            _mm256_packs_epi32(sums[2], sums[3])));
    if (at + kStep == bytes) return;
    at = std::min(at + kStep, bytes - kStep);  // the last step overlaps the one before
  }
}

bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#else
constexpr auto MixColumnsAvx2 = MixColumnsPortable;
constexpr auto MixRowsAvx2 = MixRowsPortable;
constexpr bool HasAvx2() { return false; }
#endif

}  // namespace

void MixColumns(const Axis& axis, const uint8_t* row, uint32_t channels, bool portable,
                uint8_t* to) {
  (portable || !HasAvx2() ? MixColumnsPortable : MixColumnsAvx2)(axis, row, channels, to);
}

void MixRows(const uint8_t* const* rows, const int16_t* weights, uint32_t count, size_t bytes,
             bool portable, uint8_t* to) {
  (portable || !HasAvx2() ? MixRowsPortable : MixRowsAvx2)(rows, weights, count, bytes, to);
}

}  // namespace cachecd
