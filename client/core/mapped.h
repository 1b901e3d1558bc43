// A whole file, mapped read-only, and read by descriptor where that is faster.
//
// Filling page tables costs 38 ms per GB on the machine of docs/benchmarks.md, and copying from the
// mapping 100: large values are read by pread (85) straight to where they belong, records that a
// call each would slow down are read from the mapping.

#ifndef CACHECD_CORE_MAPPED_H_
#define CACHECD_CORE_MAPPED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bytes.h"
#include "file.h"

namespace cachecd {

// Thread-safe.
class MappedFile {
 public:
  // IoError.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Valid until destruction. Touching it may be a SIGBUS: see Prefault and BusGuard.
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  ByteSpan bytes() const { return {data_, size_}; }

  // Brings [begin, end) into memory and into the page tables, so that an I/O error or a file cut
  // short by somebody else is an errno here (EFAULT: not readable). Returns 0 if it is there. What
  // was once brought in is not asked for again.
  int Prefault(uint64_t begin, uint64_t end);

  // Reads exactly `size` bytes at `offset`, which the file had when it was opened; an errno, or 0.
  int ReadAt(void* to, size_t size, uint64_t offset) const;

  // Has the disk read [begin, end) in one sweep, and returns when it has. Errors are left to
  // whoever reads it then.
  void ReadAhead(uint64_t begin, uint64_t end) const;

 private:
  int Populate(uint64_t begin, uint64_t end) const;
  // By the descriptor kept, or one opened for the purpose; an errno, or what `use` returns.
  template <typename Use>
  int WithDescriptor(Use use) const;

  const std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t inode_ = 0;
  std::optional<File> kept_;             // unless many are kept already
  std::unique_ptr<uint8_t[]> resident_;  // per granule; written without order, always to 1
};

}  // namespace cachecd

#endif  // CACHECD_CORE_MAPPED_H_
