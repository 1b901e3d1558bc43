// CRC-32C by carry-less multiplication of 64-byte registers, on x86-64 processors that have it.
//
// Four registers of 64 bytes are folded over the data (Gopal et al., "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). Measured against three streams of
// the CRC instruction at 64 kB: 48-50 GB/s against 24-27 (docs/decisions/0006).

#ifndef CACHECD_CORE_CRC32C_FOLD_H_
#define CACHECD_CORE_CRC32C_FOLD_H_

#include <cstddef>
#include <cstdint>

namespace cachecd {

constexpr size_t kFoldBytes = 256;

// What __builtin_prefetch loads into: the second-level cache. The first level has too few lines
// under way; measured at 4 to 20 kB, the second is 2 to 12 % faster.
constexpr int kSecondLevel = 2;

// Whether this processor has what it takes.
bool CanFold();

// The shift register after `size` bytes, a multiple of kFoldBytes and not 0. Meanwhile as many
// bytes at the address `coming` are loaded into the processor's cache, if they are any. Only if
// CanFold().
uint32_t FoldCrc32c(uint32_t reg, const uint8_t* data, size_t size, uintptr_t coming);

// The same, and copies the bytes to `to`, aligned to 64 bytes, past the processor's caches:
// see CopyFence.
uint32_t FoldAndCopyCrc32c(uint32_t reg, const uint8_t* data, size_t size, uintptr_t coming,
                           uint8_t* to);

}  // namespace cachecd

#endif  // CACHECD_CORE_CRC32C_FOLD_H_
