#include "crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "bytes.h"
#include "crc32c_fold.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CACHECD_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#if defined(__clang__)
#define CACHECD_CRC_TARGET __attribute__((target("crc")))
#else
#define CACHECD_CRC_TARGET __attribute__((target("+crc")))
#endif
#endif

namespace cachecd {
namespace {

// "Register" below means the CRC's shift register: the value before the final inversion.

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

using Table = std::array<uint32_t, 256>;
template <size_t N>
using Tables = std::array<Table, N>;

// tables[k][b]: the register after byte b and k zero bytes.
constexpr Tables<8> MakeByteTables() {
  Tables<8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = tables[0][before & 0xff] ^ (before >> 8);
    }
  }
  return tables;
}

constexpr Tables<8> kByteTables = MakeByteTables();

uint32_t Portable(uint32_t reg, const uint8_t* data, size_t size) {
  const Tables<8>& t = kByteTables;
  for (; size >= 8; size -= 8, data += 8) {
    const uint64_t word = LoadU64(data) ^ reg;
    reg = t[7][word & 0xff] ^ t[6][(word >> 8) & 0xff] ^ t[5][(word >> 16) & 0xff] ^
          t[4][(word >> 24) & 0xff] ^ t[3][(word >> 32) & 0xff] ^ t[2][(word >> 40) & 0xff] ^
          t[1][(word >> 48) & 0xff] ^ t[0][word >> 56];
  }
  for (; size != 0; --size, ++data) reg = t[0][(reg ^ *data) & 0xff] ^ (reg >> 8);
  return reg;
}

#ifdef CACHECD_CRC_TARGET

// The instruction has a latency of three cycles and a throughput of one, so three independent
// streams keep it busy. To join two registers, the first is shifted by as many zero bytes as the
// next stream has. The shift is linear over GF(2), so it takes four table lookups.
constexpr size_t kLongStream = 4096;
constexpr size_t kShortStream = 256;

// tables[k][b]: the register after `zeros` zero bytes, if byte k was b and the other bytes were 0.
Tables<4> MakeShiftTables(size_t zeros) {
  std::array<uint32_t, 32> columns;
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t reg = uint32_t{1} << bit;
    for (size_t i = 0; i < zeros; ++i) reg = kByteTables[0][reg & 0xff] ^ (reg >> 8);
    columns[bit] = reg;
  }
  Tables<4> tables{};
  for (size_t k = 0; k < 4; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit) & 1) tables[k][byte] ^= columns[8 * k + bit];
      }
    }
  }
  return tables;
}

inline uint32_t Shift(const Tables<4>& t, uint32_t reg) {
  return t[0][reg & 0xff] ^ t[1][(reg >> 8) & 0xff] ^ t[2][(reg >> 16) & 0xff] ^ t[3][reg >> 24];
}

#if defined(__x86_64__)
CACHECD_CRC_TARGET inline uint64_t Step8(uint64_t reg, const uint8_t* data) {
  return _mm_crc32_u64(reg, LoadU64(data));
}
CACHECD_CRC_TARGET inline uint64_t Step1(uint64_t reg, const uint8_t* data) {
  return _mm_crc32_u8(static_cast<uint32_t>(reg), *data);
}
bool HasInstruction() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2");
}
#else
CACHECD_CRC_TARGET inline uint64_t Step8(uint64_t reg, const uint8_t* data) {
  return __crc32cd(static_cast<uint32_t>(reg), LoadU64(data));
}
CACHECD_CRC_TARGET inline uint64_t Step1(uint64_t reg, const uint8_t* data) {
  return __crc32cb(static_cast<uint32_t>(reg), *data);
}
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

template <size_t kStream>
CACHECD_CRC_TARGET inline uint64_t ThreeStreams(const Tables<4>& shift, uint64_t reg,
                                                const uint8_t* data) {
  uint64_t second = 0;
  uint64_t third = 0;
  for (const uint8_t* end = data + kStream; data != end; data += 8) {
    reg = Step8(reg, data);
    second = Step8(second, data + kStream);
    third = Step8(third, data + 2 * kStream);
  }
  reg = Shift(shift, static_cast<uint32_t>(reg)) ^ second;
  return Shift(shift, static_cast<uint32_t>(reg)) ^ third;
}

CACHECD_CRC_TARGET uint32_t Streams(uint32_t start, const uint8_t* data, size_t size) {
  static const Tables<4> long_shift = MakeShiftTables(kLongStream);
  static const Tables<4> short_shift = MakeShiftTables(kShortStream);
  uint64_t reg = start;
  for (; size >= 3 * kLongStream; size -= 3 * kLongStream, data += 3 * kLongStream) {
    reg = ThreeStreams<kLongStream>(long_shift, reg, data);
  }
  for (; size >= 3 * kShortStream; size -= 3 * kShortStream, data += 3 * kShortStream) {
    reg = ThreeStreams<kShortStream>(short_shift, reg, data);
  }
  for (; size >= 8; size -= 8, data += 8) reg = Step8(reg, data);
  for (; size != 0; --size, ++data) reg = Step1(reg, data);
  return static_cast<uint32_t>(reg);
}

#else
bool HasInstruction() { return false; }
constexpr auto Streams = Portable;
#endif

constexpr size_t kCacheLine = 64;

void Prefetch(ByteSpan bytes) {
  for (const uint8_t* line = bytes.begin(); line < bytes.end(); line += kCacheLine) {
    __builtin_prefetch(line, 0, kSecondLevel);
  }
}

// Without `coming`, the data itself is prefetched this many bytes ahead, because the processor's
// own prefetching stops at page boundaries.
constexpr size_t kAhead = 2048;

// Returns the register after `size` bytes, and copies them to `to` unless it is null. Prefetching
// in step with the computation keeps both memory and processor busy. Prefetching all lines at once
// would fill the processor's buffers and stall it.
uint32_t Folded(uint32_t reg, const uint8_t* data, size_t size, ByteSpan coming, uint8_t* to) {
  const auto fold = [&](size_t bytes, uintptr_t ahead) {
    if (bytes == 0) return;
    if (to == nullptr) {
      reg = FoldCrc32c(reg, data, bytes, ahead);
    } else {
      reg = FoldAndCopyCrc32c(reg, data, bytes, ahead, to);
      to += bytes;
    }
    data += bytes;
    size -= bytes;
  };
  const auto step = [&](size_t bytes) {
    if (to != nullptr) {
      std::memcpy(to, data, bytes);
      to += bytes;
    }
    reg = Streams(reg, data, bytes);
    data += bytes;
    size -= bytes;
  };
  if (to != nullptr) step(std::min(size, -reinterpret_cast<uintptr_t>(to) % kCacheLine));
  const size_t both = std::min(size, coming.size) / kFoldBytes * kFoldBytes;
  fold(both, reinterpret_cast<uintptr_t>(coming.data));
  Prefetch({coming.data + both, coming.size - both});
  // A caller that passes `coming` passed this data as `coming` before, so it is already prefetched.
  if (coming.size == 0 && size > kAhead) {
    fold((size - kAhead) / kFoldBytes * kFoldBytes, reinterpret_cast<uintptr_t>(data) + kAhead);
  }
  fold(size / kFoldBytes * kFoldBytes, reinterpret_cast<uintptr_t>(data));
  step(size);
  return reg;
}

// kStepBytes: three short streams; then the next lines are prefetched. kCopyBytes: the copied bytes
// are still in the first-level cache when their CRC is computed.
constexpr size_t kStepBytes = 768;
constexpr size_t kCopyBytes = 12 << 10;

// Has the contract of Folded, for any other implementation.
template <uint32_t (*implementation)(uint32_t, const uint8_t*, size_t)>
uint32_t Stepwise(uint32_t reg, const uint8_t* data, size_t size, ByteSpan coming, uint8_t* to) {
  if (to == nullptr && coming.size == 0) return implementation(reg, data, size);
  while (size != 0) {
    const size_t bytes = std::min(size, coming.size != 0 ? kStepBytes : kCopyBytes);
    const size_t lines = std::min(coming.size, bytes);
    Prefetch({coming.data, lines});
    coming = {coming.data + lines, coming.size - lines};
    if (to != nullptr) {
      std::memcpy(to, data, bytes);
      to += bytes;
    }
    reg = implementation(reg, data, bytes);
    data += bytes;
    size -= bytes;
  }
  Prefetch(coming);
  return reg;
}

using Implementation = uint32_t (*)(uint32_t, const uint8_t*, size_t, ByteSpan, uint8_t*);

Implementation Choose(CrcBy by) {
  if (by == CrcBy::kFolding && CanFold()) return Folded;
  if (by != CrcBy::kTables && HasInstruction()) return Stepwise<Streams>;
  return Stepwise<Portable>;
}

const Implementation& Best() {
  static const Implementation best = Choose(CrcBy::kFolding);
  return best;
}

}  // namespace

uint32_t Crc32c(const void* data, size_t size, uint32_t crc, ByteSpan coming) {
  return ~Best()(~crc, static_cast<const uint8_t*>(data), size, coming, nullptr);
}

uint32_t CopyWithCrc32c(void* to, const void* from, size_t size, uint32_t crc, ByteSpan coming) {
  return ~Best()(~crc, static_cast<const uint8_t*>(from), size, coming, static_cast<uint8_t*>(to));
}

CopyFence::~CopyFence() {
#if defined(__x86_64__)
  _mm_sfence();  // until this fence, stores that bypass the caches are unordered
#endif
}

uint32_t Crc32c(CrcBy by, void* to, const void* from, size_t size, uint32_t crc, ByteSpan coming) {
  return ~Choose(by)(~crc, static_cast<const uint8_t*>(from), size, coming,
                     static_cast<uint8_t*>(to));
}

}  // namespace cachecd
