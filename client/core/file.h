// Files by descriptor, which is closed on destruction. Every failure of the operating system is an
// IoError with the path.

#ifndef CACHECD_CORE_FILE_H_
#define CACHECD_CORE_FILE_H_

#include <sys/uio.h>

#include <cstdint>
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
  // Where the next Write goes; nothing that is a place in a file if the descriptor is closed.
  uint64_t Position() const;

  // Reads until `size` bytes are there or the file ends; returns how many there are.
  size_t ReadAt(void* to, size_t size, uint64_t offset) const;

  // Writes all of it at the current position.
  void Write(ByteSpan bytes);
  // Writes all parts, one after the other; alters `parts`.
  void Write(iovec* parts, int count);

  // Allocates blocks for [0, bytes), so that writing there cannot fail for want of space.
  void Reserve(uint64_t bytes);
  void Truncate(uint64_t bytes);
  // Has the kernel begin to write these bytes, of which Sync then need not wait for all; a failure
  // shows there. Does nothing where that is not known.
  void StartSync(uint64_t begin, uint64_t bytes);
  void Sync();
  void Close();

 private:
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  [[noreturn]] void Fail() const;

  std::string path_;
  int fd_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILE_H_
