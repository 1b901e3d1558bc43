#include "buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "fork.h"

namespace cachecd {
namespace {

// A request reuses a block if it needs at least 1/kWorstFit of it: batch sizes differ a little.
constexpr size_t kWorstFit = 4;
// The pool's limit is never below this many blocks of the largest size: enough for one batch in use
// and one being built.
constexpr size_t kAlwaysKept = 4;

constexpr size_t kHugePage = 2 << 20;
// From this size on, rounding up to huge pages adds at most a quarter.
constexpr size_t kWorthHugePages = 4 * kHugePage;

}  // namespace

std::shared_ptr<BufferPool> BufferPool::Create(size_t keep_bytes) {
  return std::shared_ptr<BufferPool>(new BufferPool(keep_bytes));
}

BufferPool::BufferPool(size_t keep_bytes)
    : generation_(ForkGeneration()), keep_bytes_(keep_bytes) {}

BufferPool::~BufferPool() {
  for (const Block& block : unused_) std::free(block.data);
}

Buffer BufferPool::Take(size_t bytes) {
  bytes = std::max(bytes, kAlignment);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = unused_.end();
    for (auto it = unused_.begin(); it != unused_.end(); ++it) {
      if (it->capacity < bytes || it->capacity / kWorstFit > bytes) continue;
      if (best == unused_.end() || it->capacity < best->capacity) best = it;
    }
    if (best != unused_.end()) {
      const Block block = *best;
      *best = unused_.back();
      unused_.pop_back();
      unused_bytes_ -= block.capacity;
      return Buffer(shared_from_this(), block);
    }
  }
  const size_t alignment = bytes >= kWorthHugePages ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
  const size_t capacity = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, capacity);
  if (data == nullptr) throw std::bad_alloc();
  // Huge pages cost one page fault per 2 MB instead of one per 4 kB. If the kernel has none, the
  // call has no effect.
  if (alignment == kHugePage) madvise(data, capacity, MADV_HUGEPAGE);
  return Buffer(shared_from_this(), {static_cast<uint8_t*>(data), capacity});
}

void BufferPool::Return(Block block) {
  // In a forked child, the mutex may stay locked forever by a thread that does not exist there.
  if (generation_ == ForkGeneration()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t limit = std::max(keep_bytes_, kAlwaysKept * block.capacity);
    if (!closed_ && unused_bytes_ + block.capacity <= limit) {
      unused_.push_back(block);
      unused_bytes_ += block.capacity;
      return;
    }
  }
  std::free(block.data);
}

void BufferPool::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  for (const Block& block : unused_) std::free(block.data);
  unused_.clear();
  unused_bytes_ = 0;
}

Buffer::Buffer(std::shared_ptr<BufferPool> pool, BufferPool::Block block)
    : pool_(std::move(pool)), block_(block) {}

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)), block_(std::exchange(other.block_, {nullptr, 0})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_, other.block_);
  return *this;
}

Buffer::~Buffer() {
  if (block_.data != nullptr) pool_->Return(block_);
}

void Buffer::Grow(size_t used, size_t needed) {
  if (needed <= block_.capacity) return;
  Buffer larger = pool_->Take(std::max(needed, 2 * block_.capacity));
  if (used != 0) std::memcpy(larger.data(), block_.data, used);
  *this = std::move(larger);
}

}  // namespace cachecd
