// A whole file, mapped read-only.
//
// Filling page tables costs 38 ms per GB on the machine of docs/benchmarks.md, and copying from the
// mapping past the caches 55, where pread, into memory that is then read again for the CRC, takes
// 140: docs/decisions/0006.

#ifndef CACHECD_CORE_MAPPED_H_
#define CACHECD_CORE_MAPPED_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bytes.h"

namespace cachecd {

// Thread-safe.
class MappedFile {
 public:
  // Of no bytes, and no file.
  MappedFile() = default;
  // IoError.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Valid until destruction, but not in forked children. Touching it may be a SIGBUS: see Prefault
  // and BusGuard.
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  ByteSpan bytes() const { return {data_, size_}; }

  // Brings [begin, end) into memory and into the page tables. What was once brought in is not asked
  // for again; what cannot be is left to whoever reads it then.
  void Prefault(uint64_t begin, uint64_t end);

  // Has the disk read all of the file in steps of some MB, and returns when it has, or when
  // `keep_going` says so before one. What seems to be in memory is left out. Errors are left to
  // whoever reads it then.
  void ReadAhead(const std::function<bool()>& keep_going) const;

 private:
  // Whether nothing of it is known to be unreadable.
  bool Populate(uint64_t begin, uint64_t end) const;

  const std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t inode_ = 0;
  std::unique_ptr<uint8_t[]> resident_;  // per granule; written without order, always to 1
};

}  // namespace cachecd

#endif  // CACHECD_CORE_MAPPED_H_
