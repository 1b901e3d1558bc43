// Memory for columns: aligned to 64 bytes, and reused after its owner releases it.
// A Buffer is the only owner of its memory. It keeps its pool alive, so it may outlive the reader
// that filled it. The destructor may run on any thread, and returns the memory to the pool. The
// pool keeps some memory for the next batch, because fresh memory costs a page fault per 4 kB.

#ifndef CACHECD_CORE_BUFFER_H_
#define CACHECD_CORE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cachecd {

constexpr size_t kAlignment = 64;  // a cache line; TensorFlow requires this of DLPack tensors

class Buffer;

// Thread-safe.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // The pool keeps about `keep_bytes` of unused memory, but at least a few of the largest blocks.
  static std::shared_ptr<BufferPool> Create(size_t keep_bytes);
  ~BufferPool();

  // Returns at least `bytes`, not initialized. Throws std::bad_alloc.
  Buffer Take(size_t bytes);

  // Frees unused blocks. From now on, freed blocks are not kept.
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

  // Ensures `needed` bytes of capacity, at least doubling it. Keeps the first `used` bytes.
  void Grow(size_t used, size_t needed);

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<BufferPool> pool, BufferPool::Block block);

  std::shared_ptr<BufferPool> pool_;
  BufferPool::Block block_{nullptr, 0};
};

}  // namespace cachecd

#endif  // CACHECD_CORE_BUFFER_H_
