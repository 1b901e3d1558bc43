#include "numbers.h"

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace cachecd {
namespace {

// Integers decoded at a time before they are converted: they stay in the first-level cache.
constexpr uint64_t kBlock = 512;

}  // namespace

NumberReader::NumberReader(const FeatureView& feature, const Conversion& conversion)
    : feature_(feature),
      conversion_(conversion),
      lists_(feature.lists, feature.record),
      values_({}, feature.record),
      ints_({}, feature.record) {}

bool NumberReader::NextField(WireReader::Field* value) {
  for (;;) {
    while (values_.Next(value)) {
      if (value->number == 1) return true;
    }
    WireReader::Field list;
    do {
      if (!lists_.Next(&list)) return false;
    } while (list.number != static_cast<uint32_t>(feature_.kind) || list.wire_type != kWireBytes);
    values_ = WireReader(list.bytes, feature_.record);
  }
}

uint64_t NumberReader::ReadInts(int64_t* to, uint64_t limit) {
  uint64_t count = 0;
  while (count < limit) {
    WireReader::Field value;
    if (!ints_.AtEnd()) {
      count += ints_.Varints(to + count, limit - count);
    } else if (!NextField(&value)) {
      break;
    } else if (value.wire_type == kWireVarint) {
      to[count++] = static_cast<int64_t>(value.varint);
    } else if (value.wire_type == kWireBytes) {
      ints_ = WireReader(value.bytes, feature_.record);
    }
  }
  return count;
}

uint64_t NumberReader::ReadFloats(uint8_t* to, uint64_t limit) {
  uint64_t count = 0;
  while (count < limit) {
    if (floats_.size == 0) {
      WireReader::Field value;
      if (!NextField(&value)) break;
      if (value.wire_type != kWireFixed32 && value.wire_type != kWireBytes) continue;
      CountFloats(value, feature_.record);
      floats_ = value.bytes;
      continue;
    }
    const size_t here = std::min<uint64_t>(limit - count, floats_.size / sizeof(float));
    const size_t bytes = here * sizeof(float);
    if (conversion_) {
      conversion_(floats_.data, here, to + count * conversion_.to_bytes());
    } else {
      std::memcpy(to + count * sizeof(float), floats_.data, bytes);
    }
    floats_ = {floats_.data + bytes, floats_.size - bytes};
    count += here;
  }
  return count;
}

uint64_t NumberReader::Read(uint8_t* to, uint64_t limit) {
  if (feature_.kind == Kind::kFloat) return ReadFloats(to, limit);
  if (!conversion_) return ReadInts(reinterpret_cast<int64_t*>(to), limit);
  int64_t block[kBlock];
  uint64_t count = 0;
  while (count < limit) {
    const uint64_t wanted = std::min(limit - count, kBlock);
    const uint64_t here = ReadInts(block, wanted);
    conversion_(reinterpret_cast<const uint8_t*>(block), here, to + count * conversion_.to_bytes());
    count += here;
    if (here < wanted) break;
  }
  return count;
}

uint64_t NumberReader::Skip() {
  alignas(sizeof(int64_t)) uint8_t block[kBlock * sizeof(int64_t)];  // no element is larger
  uint64_t count = 0;
  for (uint64_t here = kBlock; here == kBlock; count += here) here = Read(block, kBlock);
  return count;
}

}  // namespace cachecd
