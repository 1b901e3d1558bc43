// Converts numbers from one element type to another.
// The results are NumPy's where astype defines them, and equal on all processors:
//     integer to integer   modulo 2**bits
//     float to integer     toward zero; NaN is 0; a value beyond the limits is the nearest limit
//     to bool              true unless the value is zero, so NaN is true
//     to float             rounded to nearest, ties to even; overflow is infinite. bfloat16 and,
//                          from integers, float16 are rounded from float32
//     from bool            0 or 1; any byte but 0 is true

#ifndef CACHECD_CORE_CONVERT_H_
#define CACHECD_CORE_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "element.h"

namespace cachecd {

class Conversion {
 public:
  // Empty: it must not be called.
  Conversion() = default;

  // `portable`: uses no instructions that some processors lack; for tests.
  Conversion(Element from, Element to, bool portable = false);

  explicit operator bool() const { return first_ != nullptr; }

  // Converts `count` elements. `from` and `to` need not be aligned, and must not overlap.
  void operator()(const uint8_t* from, size_t count, uint8_t* to) const;

  // Bytes per element.
  size_t from_bytes() const { return from_bytes_; }
  size_t to_bytes() const { return to_bytes_; }

  using Kernel = void (*)(const uint8_t* from, size_t count, uint8_t* to);

 private:
  Kernel first_ = nullptr;
  Kernel second_ = nullptr;  // from float32, the result of `first_`; nullptr: no second step
  size_t from_bytes_ = 0;
  size_t to_bytes_ = 0;
};

// Writes `value`, an element of `bytes` bytes, `count` times.
void FillElements(uint8_t* to, size_t count, const uint8_t* value, size_t bytes);

}  // namespace cachecd

#endif  // CACHECD_CORE_CONVERT_H_
