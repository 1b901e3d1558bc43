#include "resample.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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
  first_.resize(plan.count);
  pixels_.assign(plan.count, 1);
  if (plan.nearest) {
    MakeNearest();
  } else {
    MakeBilinear();
  }
  begin_ = *std::min_element(first_.begin(), first_.end());
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
  weights_.assign(size_t{plan_.count} * stride_, 0);
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
    int rounded = 0;
    for (uint32_t tap = 0; tap < used; ++tap) {
      const int next = static_cast<int>(std::lround(parts_[tap] / sum * (1 << kBits)));
      weights[tap] = static_cast<int16_t>(next - rounded);
      rounded = next;
    }
  }
}

namespace {

constexpr int kHalf = 1 << (Axis::kBits - 1);

template <uint32_t channels>
void MixColumnsPortable(const Axis& axis, const uint8_t* row, uint8_t* to) {
  constexpr uint32_t kBytes = channels == 1 ? 1 : 4;
  for (uint32_t i = 0; i < axis.size(); ++i, to += channels) {
    const uint8_t* pixel = row + size_t{axis.first(i)} * kBytes;
    const int16_t* weights = axis.weights(i);
    int sums[channels];
    std::fill(sums, sums + channels, kHalf);
    for (uint32_t tap = 0; tap < axis.pixels(i); ++tap, pixel += kBytes) {
      for (uint32_t c = 0; c < channels; ++c) sums[c] += weights[tap] * pixel[c];
    }
    for (uint32_t c = 0; c < channels; ++c) to[c] = static_cast<uint8_t>(sums[c] >> Axis::kBits);
  }
}

}  // namespace

void MixColumns(const Axis& axis, const uint8_t* row, uint32_t channels, uint8_t* to) {
  (channels == 1 ? MixColumnsPortable<1> : MixColumnsPortable<3>)(axis, row, to);
}

void MixRows(const uint8_t* const* rows, const int16_t* weights, uint32_t count, size_t bytes,
             uint8_t* to) {
  for (size_t at = 0; at < bytes; ++at) {
    int sum = kHalf;
    for (uint32_t i = 0; i < count; ++i) sum += weights[i] * rows[i][at];
    to[at] = static_cast<uint8_t>(sum >> Axis::kBits);
  }
}

}  // namespace cachecd
