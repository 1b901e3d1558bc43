// A file mapped read-only.
//
// Costs per GB on the machine of docs/benchmarks.md: 38 ms to fill page tables, and 55 ms to copy
// from the mapping past the caches. pread costs 140 ms, into memory that is then read again for the
// CRC: docs/decisions/0006.

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
  // A mapping without a file and without bytes.
  MappedFile() = default;
  // Throws IoError.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Valid until destruction, but not in forked children. Reading may raise SIGBUS: see Prefault and
  // BusGuard.
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  ByteSpan bytes() const { return {data_, size_}; }

  // Loads [begin, end) into memory and into the page tables. Skips parts that were loaded before.
  // If loading fails, the error occurs again when the bytes are read.
  void Prefault(uint64_t begin, uint64_t end);

  // Makes the disk read the whole file in steps of some MB. Returns at the end, or when
  // `keep_going` returns false before a step. Skips parts that seem to be in memory. Errors occur
  // again when the bytes are read.
  void ReadAhead(const std::function<bool()>& keep_going) const;

 private:
  // Returns false if part of the range is known to be unreadable.
  bool Populate(uint64_t begin, uint64_t end) const;

  const std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t inode_ = 0;
  std::unique_ptr<uint8_t[]> resident_;  // per granule: 1 if loaded; stores are relaxed
};

}  // namespace cachecd

#endif  // CACHECD_CORE_MAPPED_H_
