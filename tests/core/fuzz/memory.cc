#include "memory.h"

#include <atomic>

#include "../native/harness.h"

// Of sanitizer/allocator_interface.h, which GCC does not ship.
extern "C" {
size_t __sanitizer_get_allocated_size(const volatile void* memory);
int __sanitizer_install_malloc_and_free_hooks(void (*on_allocate)(const volatile void* memory,
                                                                  size_t size),
                                              void (*on_free)(const volatile void* memory));
}

namespace cachecd::native {
namespace {

std::atomic<size_t> live{0};
std::atomic<size_t> most{0};
size_t before = 0;

void OnAllocate(const volatile void*, size_t size) {
  const size_t now = live.fetch_add(size, std::memory_order_relaxed) + size;
  size_t known = most.load(std::memory_order_relaxed);
  while (now > known && !most.compare_exchange_weak(known, now, std::memory_order_relaxed)) {
  }
}

void OnFree(const volatile void* memory) {
  if (memory == nullptr) return;
  live.fetch_sub(__sanitizer_get_allocated_size(memory), std::memory_order_relaxed);
}

}  // namespace

MemoryWatch::MemoryWatch() {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(OnAllocate, OnFree);
  EXPECT(installed != 0);
  before = live.load(std::memory_order_relaxed);
  most.store(before, std::memory_order_relaxed);
}

size_t MemoryWatch::Peak() { return most.load(std::memory_order_relaxed) - before; }

}  // namespace cachecd::native
