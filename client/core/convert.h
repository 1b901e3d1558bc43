// Numbers of one type made into numbers of another.
//
// As NumPy's astype, where that defines a result, and the same on every processor:
//     integer to integer   modulo 2**bits
//     float to integer     toward zero; NaN is 0, and what lies beyond the limits is the nearest
//                          one
//     to bool              whether it is not zero, so NaN is true
//     to float             rounded to nearest, ties to even; too large is infinite. bfloat16 and,
//                          from integers, float16 are rounded from float32
//     from bool            0 or 1, whatever byte stands for true

#ifndef CACHECD_CORE_CONVERT_H_
#define CACHECD_CORE_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "element.h"

namespace cachecd {

class Conversion {
 public:
  // Nothing to be done; must not be called.
  Conversion() = default;

  // `portable`: without instructions that some processors lack; for tests.
  Conversion(Element from, Element to, bool portable = false);

  explicit operator bool() const { return first_ != nullptr; }

  // `count` elements; neither side need be aligned, and they must not overlap.
  void operator()(const uint8_t* from, size_t count, uint8_t* to) const;

  // Of an element.
  size_t from_bytes() const { return from_bytes_; }
  size_t to_bytes() const { return to_bytes_; }

  using Kernel = void (*)(const uint8_t* from, size_t count, uint8_t* to);

 private:
  Kernel first_ = nullptr;
  Kernel second_ = nullptr;  // from float32, which `first_` gives; nullptr: there is no second step
  size_t from_bytes_ = 0;
  size_t to_bytes_ = 0;
};

// Writes `value`, of `bytes` bytes, `count` times.
void FillElements(uint8_t* to, size_t count, const uint8_t* value, size_t bytes);

}  // namespace cachecd

#endif  // CACHECD_CORE_CONVERT_H_
