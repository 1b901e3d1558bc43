#include "fork.h"

#include <pthread.h>

#include <atomic>

namespace cachecd {
namespace {

std::atomic<uint64_t> generation{0};

// Registered when the module is loaded, so that no fork is missed.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

}  // namespace cachecd
