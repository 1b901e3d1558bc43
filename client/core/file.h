// Files by descriptor and by mapping. Both own what they opened and close it when destroyed; both
// report every failure of the operating system as IoError with the path.

#ifndef CACHECD_CORE_FILE_H_
#define CACHECD_CORE_FILE_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bytes.h"

namespace cachecd {

class File {
 public:
  // A regular file; anything else is EISDIR or EINVAL.
  static File Open(const std::string& path);
  // A new file for writing; EEXIST if there is one.
  static File Create(const std::string& path);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  uint64_t Size() const;

  // Reads until `size` bytes are there or the file ends; returns how many there are.
  size_t ReadAt(void* to, size_t size, uint64_t offset) const;

  // Writes all of it at the current position.
  void Write(ByteSpan bytes);
  // Writes all parts, one after the other; alters `parts`.
  void Write(iovec* parts, int count);

  // Allocates blocks for [0, bytes), so that writing there cannot fail for want of space.
  void Reserve(uint64_t bytes);
  void Truncate(uint64_t bytes);
  void Sync();
  void Close();

 private:
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  [[noreturn]] void Fail() const;

  std::string path_;
  int fd_;
};

// A whole file, mapped read-only; no descriptor is kept.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Valid until destruction.
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // Brings [begin, end) into memory, so that an I/O error or a file cut short by somebody else is
  // an errno here (EFAULT: not readable) and not a SIGBUS in whoever touches the bytes. Returns 0
  // if they are there. What was once brought in is not asked for again. Thread-safe.
  int Prefault(uint64_t begin, uint64_t end);

 private:
  int Populate(uint64_t begin, uint64_t end) const;

  std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  std::unique_ptr<uint8_t[]> resident_;  // per granule; written without order, always to 1
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILE_H_
