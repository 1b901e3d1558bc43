// How much memory a piece of work takes at most, as the sanitizer's allocator counts it.

#ifndef CACHECD_TESTS_CORE_FUZZ_MEMORY_H_
#define CACHECD_TESTS_CORE_FUZZ_MEMORY_H_

#include <cstddef>

namespace cachecd::native {

// Of all threads, from construction on. One at a time.
class MemoryWatch {
 public:
  MemoryWatch();

  // The most that was allocated at once, beyond what was when the watch began.
  static size_t Peak();
};

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_MEMORY_H_
