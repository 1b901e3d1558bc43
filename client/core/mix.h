// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014): every input bit affects every output bit.

#ifndef CACHECD_CORE_MIX_H_
#define CACHECD_CORE_MIX_H_

#include <cstdint>

namespace cachecd {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, SplitMix64's increment

inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace cachecd

#endif  // CACHECD_CORE_MIX_H_
