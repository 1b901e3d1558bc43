// A file mapped read-only.
// On the machine of docs/benchmarks.md, filling page tables costs 38 ms per GB, and copying from
// the mapping past the caches costs 55 ms. pread costs 140 ms, and the CRC reads the memory again:
// see docs/decisions/0006.

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
  // Ignores errors, which occur again when the bytes are read.
  void Prefault(uint64_t begin, uint64_t end);

  // Makes the disk read the whole file in steps of some MB, until `keep_going` returns false before
  // a step. Skips parts that seem to be in memory. Ignores errors, as Prefault does.
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
