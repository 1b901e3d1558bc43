// A file descriptor that is closed on destruction. Failed system calls throw IoError with the path.

#ifndef CACHECD_CORE_FILE_H_
#define CACHECD_CORE_FILE_H_

#include <sys/uio.h>

#include <cstdint>
#include <string>

#include "bytes.h"

namespace cachecd {

class File {
 public:
  // Opens a regular file. Throws EISDIR for a directory, EINVAL for another type.
  static File Open(const std::string& path);
  // Creates a file for writing. Throws EEXIST if it exists.
  static File Create(const std::string& path);

  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  uint64_t Size() const;
  // Returns the offset of the next Write, or UINT64_MAX if the descriptor is closed.
  uint64_t Position() const;

  // Reads `size` bytes, fewer only at the end of the file. Returns the number of bytes read.
  size_t ReadAt(void* to, size_t size, uint64_t offset) const;

  // Writes all bytes at the current position.
  void Write(ByteSpan bytes);
  // Writes all parts in order; modifies `parts`.
  void Write(iovec* parts, int count);

  // Allocates blocks for [0, bytes), so that writing them cannot fail for lack of space.
  void Reserve(uint64_t bytes);
  void Truncate(uint64_t bytes);
  // Starts to write these bytes to disk, so that Sync waits for fewer bytes. Sync reports failures.
  // Does nothing where it is not supported.
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
