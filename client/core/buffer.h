// Memory for columns: 64-byte aligned, and used again once its owner lets it go.
//
// A Buffer owns its memory alone. It may outlive the reader that filled it: it keeps its pool
// alive, and its destruction, on whatever thread, returns the memory there. The pool keeps a
// bounded amount for the next batch, because fresh memory costs a page fault per 4 kB.

#ifndef CACHECD_CORE_BUFFER_H_
#define CACHECD_CORE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cachecd {

constexpr size_t kAlignment = 64;  // what TensorFlow demands of DLPack, and a cache line

class Buffer;

// Thread-safe.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Keeps at most about `keep_bytes` of unused memory (but always enough for a few of the largest).
  static std::shared_ptr<BufferPool> Create(size_t keep_bytes);
  ~BufferPool();

  // At least `bytes`, not initialized; std::bad_alloc.
  Buffer Take(size_t bytes);

  // Frees what is unused and keeps nothing from now on.
  void Close();

 private:
  friend class Buffer;
  struct Block {
    uint8_t* data;
    size_t capacity;
  };

  explicit BufferPool(size_t keep_bytes);
  void Return(Block block);

  const uint64_t generation_;
  std::mutex mutex_;
  std::vector<Block> unused_;
  size_t unused_bytes_ = 0;
  size_t keep_bytes_;
  bool closed_ = false;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  uint8_t* data() const { return block_.data; }
  size_t capacity() const { return block_.capacity; }

  // Makes room for `needed` bytes in all, at least doubling; the first `used` bytes are kept.
  void Grow(size_t used, size_t needed);

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<BufferPool> pool, BufferPool::Block block);

  std::shared_ptr<BufferPool> pool_;
  BufferPool::Block block_{nullptr, 0};
};

}  // namespace cachecd

#endif  // CACHECD_CORE_BUFFER_H_
