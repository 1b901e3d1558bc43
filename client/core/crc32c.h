// CRC-32C (Castagnoli, RFC 3720), by processor instructions where available.
// The implementation is chosen once, at run time. On x86-64 with AVX-512 and VPCLMULQDQ it is
// folding. With SSE4.2, or with the CRC extension of ARMv8, it is three streams of the CRC
// instruction. Otherwise it uses tables. All implementations return the same values. Thread-safe;
// no errors.

#ifndef CACHECD_CORE_CRC32C_H_
#define CACHECD_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace cachecd {

// Returns the CRC of `size` bytes at `data`, continued from `crc`, the CRC of the preceding bytes.
// Loads the bytes at `coming`, which the caller reads next, into the processor's cache.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0, ByteSpan coming = {});

// Like Crc32c, and copies the bytes to `to`, past the processor's caches where this is faster. For
// bytes that are not read again soon. Other threads may read the copy after a CopyFence is
// destroyed.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t size, uint32_t crc,
                        ByteSpan coming = {});

struct CopyFence {
  ~CopyFence();
};

// Crc32c by one implementation, for tests. If the processor lacks the instructions, uses the next
// implementation in CrcBy. Copies the bytes to `to` unless `to` is null.
enum class CrcBy { kFolding, kStreams, kTables };
uint32_t Crc32c(CrcBy by, void* to, const void* from, size_t size, uint32_t crc, ByteSpan coming);

// Returns the CRC as TFRecord stores it. Masked, because a CRC of data that contains CRCs is weak.
constexpr uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

inline uint32_t MaskedCrc32c(const void* data, size_t size) { return MaskCrc(Crc32c(data, size)); }

}  // namespace cachecd

#endif  // CACHECD_CORE_CRC32C_H_
