// The fast decoder for packed lists of varints.

#ifndef CACHECD_CORE_VARINT_H_
#define CACHECD_CORE_VARINT_H_

#include <cstddef>
#include <cstdint>

namespace cachecd {

// Decodes at most `limit` varints at `*at`, moves `*at` behind the last varint, and returns their
// number. Stops if `limit` allows fewer than eight more, if fewer than ten bytes remain, or if a
// varint is malformed. The caller must read the rest one by one.
size_t DecodeVarints(const uint8_t** at, const uint8_t* end, int64_t* to, size_t limit);

// DecodeVarints for processors without fast instructions; for tests.
size_t DecodeVarintsPortable(const uint8_t** at, const uint8_t* end, int64_t* to, size_t limit);

}  // namespace cachecd

#endif  // CACHECD_CORE_VARINT_H_
