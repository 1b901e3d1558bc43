#include "convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define CACHECD_AVX2 __attribute__((target("avx2,f16c")))
#endif

#define CACHECD_INLINE inline __attribute__((always_inline))

namespace cachecd {
namespace {

using Kernel = Conversion::Kernel;

// Elements converted through float32 at a time: their floats stay in the first-level cache.
constexpr size_t kBlock = 512;

// The compiler can vectorize the loops below: they have no calls and no branches on values. Load
// and Store use memcpy, because elements in records are not aligned.

template <typename T>
CACHECD_INLINE auto Load(const uint8_t* from, size_t index) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint8_t>(from[index] != 0);
  } else {
    T value;
    std::memcpy(&value, from + index * sizeof(T), sizeof value);
    return value;
  }
}

template <typename T>
CACHECD_INLINE void Store(uint8_t* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof value);
}

template <typename To, typename From>
CACHECD_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <typename To, typename From>
CACHECD_INLINE To Truncate(From value) {
  using Limits = std::numeric_limits<To>;
  if constexpr (sizeof(To) == 8) {
    // The largest integer is not a float; the next integer, a power of two, is.
    constexpr From kBeyond = static_cast<From>(Limits::max() / 2 + 1) * 2;
    constexpr From kLowest = static_cast<From>(Limits::min());
    if (value >= kBeyond) return Limits::max();
    if (value > kLowest) return static_cast<To>(value);
    return value <= kLowest ? Limits::min() : To{0};
  } else {
    // This type represents the limits exactly.
    using Wide = std::conditional_t<sizeof(To) == 4, double, From>;
    using Via = std::conditional_t<std::is_same_v<To, uint32_t>, int64_t, int32_t>;
    Wide wide = value == value ? static_cast<Wide>(value) : Wide{0};
    wide = wide > static_cast<Wide>(Limits::min()) ? wide : static_cast<Wide>(Limits::min());
    wide = wide < static_cast<Wide>(Limits::max()) ? wide : static_cast<Wide>(Limits::max());
    return static_cast<To>(static_cast<Via>(wide));
  }
}

template <typename To, typename From>
CACHECD_INLINE To Convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return Truncate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <typename From, typename To>
CACHECD_INLINE void Loop(const uint8_t* __restrict from, size_t count, uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) Store(to, i, Convert<To>(Load<From>(from, i)));
}

// Rounds float64 to float32 "to odd": an inexact value becomes the neighbor whose last bit is set.
// Rounding the result to float16 then equals rounding the float64 directly.
CACHECD_INLINE void LoopDoublesToOddFloats(const uint8_t* __restrict from, size_t count,
                                           uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    const double exact = Load<double>(from, i);
    const float nearest = static_cast<float>(exact);
    const double back = nearest;
    const uint32_t bits = BitCast<uint32_t>(nearest);
    const bool away = (back < 0 ? -back : back) > (exact < 0 ? -exact : exact);
    const bool odd = (bits & 1) != 0;
    Store<uint32_t>(to, i, back == exact || odd ? bits : away ? bits - 1 : bits + 1);
  }
}

CACHECD_INLINE void LoopBfloatsToFloats(const uint8_t* __restrict from, size_t count,
                                        uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    Store<uint32_t>(to, i, uint32_t{Load<uint16_t>(from, i)} << 16);
  }
}

CACHECD_INLINE void LoopFloatsToBfloats(const uint8_t* __restrict from, size_t count,
                                        uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = Load<uint32_t>(from, i);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const uint32_t quiet_nan = bits | 0x400000;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    Store<uint16_t>(to, i, static_cast<uint16_t>((nan ? quiet_nan : rounded) >> 16));
  }
}

// Both by F. Giesen ("Float->half variants", 2012), but NaNs convert as in the F16C instructions.
CACHECD_INLINE uint32_t HalfToFloatBits(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  // The exponents' biases differ by 112; the multiplication also normalizes subnormals.
  const uint32_t finite = BitCast<uint32_t>(BitCast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000 | (magnitude > 0x0f800000 ? 0x400000 : 0);
  return (magnitude >= 0x0f800000 ? special : finite) | uint32_t{half & 0x8000u} << 16;
}

CACHECD_INLINE uint16_t FloatToHalfBits(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffff;
  // This float's last bit is worth as much as a subnormal half's, so adding the float rounds there.
  constexpr uint32_t kSubnormal = uint32_t{127 - 15 + 23 - 10 + 1} << 23;
  const uint32_t subnormal =
      BitCast<uint32_t>(BitCast<float>(magnitude) + BitCast<float>(kSubnormal)) - kSubnormal;
  const uint32_t normal =
      (magnitude - (uint32_t{127 - 15} << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t special =
      magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : uint32_t{0x7c00};
  const uint32_t made = magnitude >= uint32_t{127 + 16} << 23  ? special
                        : magnitude < uint32_t{127 - 14} << 23 ? subnormal
                                                               : normal;
  return static_cast<uint16_t>(made | (bits >> 16 & 0x8000));
}

CACHECD_INLINE void LoopHalvesToFloats(const uint8_t* __restrict from, size_t count,
                                       uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    Store<uint32_t>(to, i, HalfToFloatBits(Load<uint16_t>(from, i)));
  }
}

CACHECD_INLINE void LoopFloatsToHalves(const uint8_t* __restrict from, size_t count,
                                       uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    Store<uint16_t>(to, i, FloatToHalfBits(Load<uint32_t>(from, i)));
  }
}

// Each loop is compiled twice: for all processors of the architecture, and for processors with
// AVX2.

struct Portable {
  template <typename From, typename To>
  static void Direct(const uint8_t* from, size_t count, uint8_t* to) {
    Loop<From, To>(from, count, to);
  }
  static void DoublesToOddFloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopDoublesToOddFloats(from, count, to);
  }
  static void BfloatsToFloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopBfloatsToFloats(from, count, to);
  }
  static void FloatsToBfloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopFloatsToBfloats(from, count, to);
  }
  static void HalvesToFloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopHalvesToFloats(from, count, to);
  }
  static void FloatsToHalves(const uint8_t* from, size_t count, uint8_t* to) {
    LoopFloatsToHalves(from, count, to);
  }
};

#ifdef CACHECD_AVX2

struct Avx2 {
  template <typename From, typename To>
  CACHECD_AVX2 static void Direct(const uint8_t* from, size_t count, uint8_t* to) {
    Loop<From, To>(from, count, to);
  }
  CACHECD_AVX2 static void DoublesToOddFloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopDoublesToOddFloats(from, count, to);
  }
  CACHECD_AVX2 static void BfloatsToFloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopBfloatsToFloats(from, count, to);
  }
  CACHECD_AVX2 static void FloatsToBfloats(const uint8_t* from, size_t count, uint8_t* to) {
    LoopFloatsToBfloats(from, count, to);
  }
  CACHECD_AVX2 static void HalvesToFloats(const uint8_t* from, size_t count, uint8_t* to) {
    for (; count >= 8; count -= 8, from += 16, to += 32) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      _mm256_storeu_ps(reinterpret_cast<float*>(to), _mm256_cvtph_ps(halves));
    }
    LoopHalvesToFloats(from, count, to);
  }
  CACHECD_AVX2 static void FloatsToHalves(const uint8_t* from, size_t count, uint8_t* to) {
    for (; count >= 8; count -= 8, from += 32, to += 16) {
      const __m256 floats = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                       _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
    }
    LoopFloatsToHalves(from, count, to);
  }
};

bool HasAvx2() {
  // In Clang before 16, __builtin_cpu_supports does not know F16C.
  unsigned eax, ebx, ecx, edx;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  __builtin_cpu_init();
  return has_f16c && __builtin_cpu_supports("avx2");
}

#else
using Avx2 = Portable;
bool HasAvx2() { return false; }
#endif

template <typename T>
struct Type {
  using type = T;
};

// Returns visit(Type<T>) for the element's C++ type; T is float for float16 and bfloat16.
template <typename Visit>
Kernel ByType(Element element, Visit visit) {
  switch (element) {
    case Element::kBool:
      return visit(Type<bool>());
    case Element::kInt8:
      return visit(Type<int8_t>());
    case Element::kUint8:
      return visit(Type<uint8_t>());
    case Element::kInt16:
      return visit(Type<int16_t>());
    case Element::kUint16:
      return visit(Type<uint16_t>());
    case Element::kInt32:
      return visit(Type<int32_t>());
    case Element::kUint32:
      return visit(Type<uint32_t>());
    case Element::kInt64:
      return visit(Type<int64_t>());
    case Element::kUint64:
      return visit(Type<uint64_t>());
    case Element::kFloat64:
      return visit(Type<double>());
    case Element::kFloat16:
    case Element::kBfloat16:
    case Element::kFloat32:
      break;
  }
  return visit(Type<float>());
}

// T's unsigned counterpart if `kUnsigned`, otherwise T.
template <typename T, bool kUnsigned>
struct Sign : Type<T> {};
template <typename T>
struct Sign<T, true> : std::make_unsigned<T> {};

template <typename T>
constexpr bool kCounts = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <typename Isa>
Kernel FindDirect(Element from, Element to) {
  return ByType(from, [to](auto source) {
    return ByType(to, [](auto target) -> Kernel {
      using From = typename decltype(source)::type;
      using To = typename decltype(target)::type;
      // Pairs of integers share a loop: modulo 2**bits, signs do not matter, except the sign of an
      // integer that is widened.
      constexpr bool kIntegers = kCounts<From> && kCounts<To>;
      constexpr bool kLonger = sizeof(To) > sizeof(From);
      return &Isa::template Direct<typename Sign<From, kIntegers && !kLonger>::type,
                                   typename Sign<To, kIntegers>::type>;
    });
  });
}

bool IsHalf(Element element) {
  return element == Element::kFloat16 || element == Element::kBfloat16;
}

template <typename Isa>
Kernel FindToFloat(Element from, Element finally) {
  if (from == Element::kFloat16) return &Isa::HalvesToFloats;
  if (from == Element::kBfloat16) return &Isa::BfloatsToFloats;
  if (from == Element::kFloat64 && finally == Element::kFloat16) return &Isa::DoublesToOddFloats;
  return FindDirect<Isa>(from, Element::kFloat32);
}

template <typename Isa>
Kernel FindFromFloat(Element to) {
  if (to == Element::kFloat16) return &Isa::FloatsToHalves;
  if (to == Element::kBfloat16) return &Isa::FloatsToBfloats;
  return FindDirect<Isa>(Element::kFloat32, to);
}

template <typename Isa>
void Find(Element from, Element to, Kernel* first, Kernel* second) {
  if (from == to) {
    // Copies the bits as unsigned integers of the same size.
    const size_t bytes = ElementBytes(from);
    const Element bits = bytes == 1   ? Element::kUint8
                         : bytes == 2 ? Element::kUint16
                         : bytes == 4 ? Element::kUint32
                                      : Element::kUint64;
    *first = FindDirect<Isa>(bits, bits);
  } else if (!IsHalf(from) && !IsHalf(to)) {
    *first = FindDirect<Isa>(from, to);
  } else if (from == Element::kFloat32) {
    *first = FindFromFloat<Isa>(to);
  } else {
    *first = FindToFloat<Isa>(from, to);
    if (to != Element::kFloat32) *second = FindFromFloat<Isa>(to);
  }
}

}  // namespace

Conversion::Conversion(Element from, Element to, bool portable)
    : from_bytes_(ElementBytes(from)), to_bytes_(ElementBytes(to)) {
  static const bool has_avx2 = HasAvx2();
  if (has_avx2 && !portable) {
    Find<Avx2>(from, to, &first_, &second_);
  } else {
    Find<Portable>(from, to, &first_, &second_);
  }
}

void Conversion::operator()(const uint8_t* from, size_t count, uint8_t* to) const {
  if (second_ == nullptr) {
    first_(from, count, to);
    return;
  }
  alignas(64) uint8_t floats[kBlock * sizeof(float)];
  while (count != 0) {
    const size_t here = std::min(count, kBlock);
    first_(from, here, floats);
    second_(floats, here, to);
    from += here * from_bytes_;
    to += here * to_bytes_;
    count -= here;
  }
}

void FillElements(uint8_t* to, size_t count, const uint8_t* value, size_t bytes) {
  if (count == 0) return;
  std::memcpy(to, value, bytes);
  // Each step copies the elements already written behind themselves.
  for (size_t done = 1; done < count; done *= 2) {
    std::memcpy(to + done * bytes, to, std::min(done, count - done) * bytes);
  }
}

}  // namespace cachecd
