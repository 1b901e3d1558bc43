#include "crc32c_fold.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace cachecd {
namespace {

#define CACHECD_FOLD_TARGET \
  __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")))

// Returns x^n modulo the polynomial, bits reflected, as a factor of a carry-less product. A product
// of reflected numbers is one bit too low, so the factor is shifted by one bit.
constexpr uint64_t Power(int n) {
  uint32_t value = uint32_t{1} << 31;  // x^0
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
  return uint64_t{value} << 1;
}

// Returns the factors that move 128 bits by `bytes` bytes. The low half has the higher powers of x,
// so it moves 32 bits farther; the high half moves 32 bits less.
template <int bytes>
CACHECD_FOLD_TARGET inline __m512i Distance() {
  constexpr uint64_t low = Power(8 * bytes + 32);
  constexpr uint64_t high = Power(8 * bytes - 32);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

CACHECD_FOLD_TARGET inline __m512i Fold(__m512i value, __m512i distance, __m512i next) {
  constexpr int kXor3 = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, distance, 0x00),
                                   _mm512_clmulepi64_epi128(value, distance, 0x11), next, kXor3);
}

// Returns the 64 bytes at `at`. If `copy`, also stores them to `to`, bypassing the caches.
template <bool copy>
CACHECD_FOLD_TARGET inline __m512i Load(const uint8_t* from, uint8_t* to, size_t at) {
  const __m512i value = _mm512_loadu_si512(from + at);
  if constexpr (copy) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), value);
  return value;
}

template <bool copy>
CACHECD_FOLD_TARGET uint32_t FoldAll(uint32_t reg, const uint8_t* data, size_t size,
                                     uintptr_t coming, uint8_t* to) {
  const auto prefetch = [](uintptr_t lines) {
    for (int line = 0; line < 4; ++line) {
      __builtin_prefetch(reinterpret_cast<const void*>(lines + 64 * line), 0, kSecondLevel);
    }
  };
  prefetch(coming);
  // The register is added to the first four bytes only.
  __m512i a = _mm512_xor_si512(Load<copy>(data, to, 0),
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(reg))));
  __m512i b = Load<copy>(data, to, 64);
  __m512i c = Load<copy>(data, to, 128);
  __m512i d = Load<copy>(data, to, 192);
  const __m512i far = Distance<kFoldBytes>();
  for (size_t at = kFoldBytes; at != size; at += kFoldBytes) {
    prefetch(coming + at);
    a = Fold(a, far, Load<copy>(data, to, at));
    b = Fold(b, far, Load<copy>(data, to, at + 64));
    c = Fold(c, far, Load<copy>(data, to, at + 128));
    d = Fold(d, far, Load<copy>(data, to, at + 192));
  }
  const __m512i near = Distance<64>();
  a = Fold(Fold(Fold(a, near, b), near, c), near, d);
  // The remaining 64 bytes have the CRC of the whole data.
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, a);
  uint64_t rest = 0;
  for (const uint64_t word : words) rest = _mm_crc32_u64(rest, word);
  return static_cast<uint32_t>(rest);
}

}  // namespace

bool CanFold() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
}

uint32_t FoldCrc32c(uint32_t reg, const uint8_t* data, size_t size, uintptr_t coming) {
  return FoldAll<false>(reg, data, size, coming, nullptr);
}

uint32_t FoldAndCopyCrc32c(uint32_t reg, const uint8_t* data, size_t size, uintptr_t coming,
                           uint8_t* to) {
  return FoldAll<true>(reg, data, size, coming, to);
}

}  // namespace cachecd

#else

namespace cachecd {

bool CanFold() { return false; }
uint32_t FoldCrc32c(uint32_t reg, const uint8_t*, size_t, uintptr_t) { return reg; }
uint32_t FoldAndCopyCrc32c(uint32_t reg, const uint8_t*, size_t, uintptr_t, uint8_t*) {
  return reg;
}

}  // namespace cachecd

#endif
