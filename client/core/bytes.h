// A non-owning view of bytes, and little-endian loads and stores.

#ifndef CACHECD_CORE_BYTES_H_
#define CACHECD_CORE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cachecd {

// Required, because columns and sidecars return the bytes of files unchanged.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the formats are little-endian");

// Valid while the memory that it points to is valid. Copying a span copies no bytes.
struct ByteSpan {
  const uint8_t* data = nullptr;
  size_t size = 0;

  const uint8_t* begin() const { return data; }
  const uint8_t* end() const { return data + size; }
};

inline uint32_t LoadU32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline uint64_t LoadU64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void StoreU32(uint8_t* to, uint32_t value) { std::memcpy(to, &value, sizeof value); }

inline void StoreU64(uint8_t* to, uint64_t value) { std::memcpy(to, &value, sizeof value); }

}  // namespace cachecd

#endif  // CACHECD_CORE_BYTES_H_
