// The fast part of reading a packed list of varints.

#ifndef CACHECD_CORE_VARINT_H_
#define CACHECD_CORE_VARINT_H_

#include <cstddef>
#include <cstdint>

namespace cachecd {

// Decodes varints from `*at` on, at most `limit`, as long as eight of them and ten bytes before
// `end` may be taken without looking, and moves `*at` behind the last. What is then left, and what
// is malformed, is for the caller to read one by one. Returns how many there were.
size_t DecodeVarints(const uint8_t** at, const uint8_t* end, int64_t* to, size_t limit);

// The same for processors without a fast instruction for it; for tests.
size_t DecodeVarintsPortable(const uint8_t** at, const uint8_t* end, int64_t* to, size_t limit);

}  // namespace cachecd

#endif  // CACHECD_CORE_VARINT_H_
