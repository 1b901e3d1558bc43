// Scales a picture row by row as Pillow's resize does: BILINEAR with antialiasing, or NEAREST.

#ifndef CACHECD_CORE_RESAMPLE_H_
#define CACHECD_CORE_RESAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachecd {

// How `count` results along one axis, from the position `from` of `scaled`, are made of the pixels
// of the picture as it is stored.
struct AxisPlan {
  uint32_t side = 0;         // pixels of the picture along this axis
  uint32_t box = 0;          // first pixel of the box in the upright picture
  uint32_t length = 0;       // pixels of the box
  uint32_t scaled = 0;       // positions that the box is scaled to
  uint32_t from = 0;         // the first position of the results
  uint32_t count = 0;        // results
  uint32_t denominator = 1;  // pixels come reduced by this factor
  bool mirrored = false;     // the picture is stored in the opposite direction
  bool flip = false;         // the results are wanted in the opposite direction
  bool nearest = false;

  bool operator==(const AxisPlan& other) const;
};

// For each result the pixels that are mixed, and their weights.
class Axis {
 public:
  static constexpr int kBits = 14;       // a weight of 1 is 1 << kBits
  static constexpr uint32_t kGroup = 8;  // weights that are loaded at once
  static constexpr uint32_t kLanes = 3;  // entries without weight behind the last

  // Does nothing if the plan is the same as before. `by_source`: entries are in the order of the
  // pixels and not of the results.
  void Make(const AxisPlan& plan, bool by_source);

  uint32_t begin() const { return begin_; }  // the pixels that are needed
  uint32_t end() const { return end_; }
  uint32_t taps() const { return taps_; }  // most pixels of a result; 1: nothing is mixed
  uint32_t size() const { return plan_.count; }
  bool is_reversed() const { return reversed_; }  // only with by_source
  // Of an entry: its first pixel, counted from begin(); how many; and stride() weights, of which
  // those beyond are 0.
  const uint32_t* first() const { return first_.data(); }
  uint32_t first(uint32_t entry) const { return first_[entry]; }
  uint32_t pixels(uint32_t entry) const { return pixels_[entry]; }
  uint32_t stride() const { return stride_; }
  const int16_t* weights(uint32_t entry) const { return weights_.data() + size_t{entry} * stride_; }
  // The pixel of an entry without weights, in the upright picture.
  uint32_t upright(uint32_t entry) const;

 private:
  void MakeNearest();
  void MakeBilinear();

  AxisPlan plan_;
  bool by_source_ = false;
  bool reversed_ = false;
  uint32_t begin_ = 0, end_ = 0, taps_ = 0, stride_ = 0;
  std::vector<uint32_t> first_, pixels_;
  std::vector<int16_t> weights_;
  std::vector<double> parts_;
};

// Mixes pixels of a row: `channels` of 1 from 1 byte per pixel, of 3 from 4. Reads 4 * stride()
// bytes and writes 16 bytes beyond the end.
void MixColumns(const Axis& axis, const uint8_t* row, uint32_t channels, bool portable,
                uint8_t* to);

// Mixes `count` rows of so many bytes.
void MixRows(const uint8_t* const* rows, const int16_t* weights, uint32_t count, size_t bytes,
             bool portable, uint8_t* to);

}  // namespace cachecd

#endif  // CACHECD_CORE_RESAMPLE_H_
