// Reads the numbers of an int64 or float list, packed or not, piece by piece.

#ifndef CACHECD_CORE_NUMBERS_H_
#define CACHECD_CORE_NUMBERS_H_

#include <cstdint>

#include "bytes.h"
#include "convert.h"
#include "example.h"

namespace cachecd {

class NumberReader {
 public:
  // `feature` has kind kInt64 or kFloat. `conversion`, if any, is from int64 or float32.
  explicit NumberReader(const FeatureView& feature, const Conversion& conversion = {});

  // Writes at most `limit` numbers, fewer only at the end. Returns the number written. Throws
  // MalformedExample.
  uint64_t Read(uint8_t* to, uint64_t limit);

  // Reads the remaining numbers and returns their count.
  uint64_t Skip();

 private:
  bool NextField(WireReader::Field* value);
  uint64_t ReadInts(int64_t* to, uint64_t limit);
  uint64_t ReadFloats(uint8_t* to, uint64_t limit);

  const FeatureView feature_;
  const Conversion conversion_;
  WireReader lists_;   // the fields of the Feature
  WireReader values_;  // the fields of the current list
  WireReader ints_;    // the rest of a packed field
  ByteSpan floats_;    // the rest of a packed field
};

}  // namespace cachecd

#endif  // CACHECD_CORE_NUMBERS_H_
