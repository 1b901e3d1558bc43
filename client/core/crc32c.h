// CRC-32C (Castagnoli, RFC 3720), by processor instructions where available.
//
// The implementation is chosen once, at run time: folding on x86-64 with AVX-512 and VPCLMULQDQ,
// three streams of the CRC instruction with SSE4.2 or the CRC extension of ARMv8, otherwise tables.
// All return the same values. Thread-safe; no errors.

#ifndef CACHECD_CORE_CRC32C_H_
#define CACHECD_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace cachecd {

// Returns the CRC of `size` bytes at `data`, continued from `crc`, the CRC of the bytes before.
// Meanwhile loads `coming`, which is read next, into the processor's cache.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0, ByteSpan coming = {});

// Crc32c that also copies the bytes to `to`, past the processor's caches where that is faster: for
// bytes that are not read again soon. Another thread may read them after a CopyFence is destroyed.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t size, uint32_t crc,
                        ByteSpan coming = {});

struct CopyFence {
  ~CopyFence();
};

// Crc32c by one implementation, for tests. If the processor lacks its instructions, the next
// implementation in CrcBy is used. Copies to `to` unless it is null.
enum class CrcBy { kFolding, kStreams, kTables };
uint32_t Crc32c(CrcBy by, void* to, const void* from, size_t size, uint32_t crc, ByteSpan coming);

// Returns the CRC as TFRecord stores it. Masked, because a CRC of data that contains CRCs is weak.
constexpr uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

inline uint32_t MaskedCrc32c(const void* data, size_t size) { return MaskCrc(Crc32c(data, size)); }

}  // namespace cachecd

#endif  // CACHECD_CORE_CRC32C_H_
