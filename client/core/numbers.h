// The numbers of an int64 or float list, packed or not, a piece at a time.

#ifndef CACHECD_CORE_NUMBERS_H_
#define CACHECD_CORE_NUMBERS_H_

#include <cstdint>

#include "bytes.h"
#include "convert.h"
#include "example.h"

namespace cachecd {

class NumberReader {
 public:
  // Of a feature of kind kInt64 or kFloat; the conversion, if any, is from int64 or float32.
  explicit NumberReader(const FeatureView& feature, const Conversion& conversion = {});

  // Writes the next numbers, at most `limit`; fewer only at the end. Returns how many.
  // MalformedExample.
  uint64_t Read(uint8_t* to, uint64_t limit);

  // Reads what is left and returns how many that were.
  uint64_t Skip();

 private:
  bool NextField(WireReader::Field* value);
  uint64_t ReadInts(int64_t* to, uint64_t limit);
  uint64_t ReadFloats(uint8_t* to, uint64_t limit);

  const FeatureView feature_;
  const Conversion conversion_;
  WireReader lists_;   // the fields of the Feature
  WireReader values_;  // of the list at which we are
  WireReader ints_;    // what is left of a packed field
  ByteSpan floats_;    // the same
};

}  // namespace cachecd

#endif  // CACHECD_CORE_NUMBERS_H_
