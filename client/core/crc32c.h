// CRC-32C (Castagnoli, RFC 3720), by the processor's instructions where it has them.
//
// The implementation is chosen once, at run time: folding where x86-64 has AVX-512 and VPCLMULQDQ,
// three streams of the CRC instruction where it has SSE4.2 or ARMv8 its extension, tables
// elsewhere. All give the same values. Thread-safe; no errors.

#ifndef CACHECD_CORE_CRC32C_H_
#define CACHECD_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace cachecd {

// The CRC of `size` bytes at `data`, continuing from the CRC of what precedes them. Meanwhile
// `coming`, which is wanted soon, is loaded into the processor's cache.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0, ByteSpan coming = {});

// The same of bytes that are copied on the way, past the processor's caches where that is faster:
// for what is not read again soon. Another thread may read them once a CopyFence has ended.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t size, uint32_t crc,
                        ByteSpan coming = {});

struct CopyFence {
  ~CopyFence();
};

// The implementations, for tests of each whatever the processor: by folding if it can, by streams
// if it has the instruction, by tables. Copies to `to` unless that is null.
enum class CrcBy { kFolding, kStreams, kTables };
uint32_t Crc32c(CrcBy by, void* to, const void* from, size_t size, uint32_t crc, ByteSpan coming);

// A CRC as TFRecord stores it: a CRC over data that contains CRCs would be weak.
constexpr uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

inline uint32_t MaskedCrc32c(const void* data, size_t size) { return MaskCrc(Crc32c(data, size)); }

}  // namespace cachecd

#endif  // CACHECD_CORE_CRC32C_H_
