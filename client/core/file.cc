#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "errors.h"

namespace cachecd {
namespace {

template <typename Call>
auto RetryInterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

File File::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer before fstat could refuse the FIFO.
  const int fd = RetryInterrupted(
      [&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); });
  if (fd < 0) throw IoError(errno, path);
  File file(path, fd);
  struct stat status;
  if (fstat(fd, &status) != 0) file.Fail();
  if (S_ISDIR(status.st_mode)) throw IoError(EISDIR, path);
  if (!S_ISREG(status.st_mode)) throw IoError(EINVAL, path);
  return file;
}

File File::Create(const std::string& path) {
  const int fd = RetryInterrupted(
      [&] { return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd < 0) throw IoError(errno, path);
  return File(path, fd);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

void File::Fail() const { throw IoError(errno, path_); }

uint64_t File::Size() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) Fail();
  return static_cast<uint64_t>(status.st_size);
}

uint64_t File::Position() const { return static_cast<uint64_t>(lseek(fd_, 0, SEEK_CUR)); }

size_t File::ReadAt(void* to, size_t size, uint64_t offset) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = RetryInterrupted([&] {
      return pread(fd_, static_cast<uint8_t*>(to) + done, size - done,
                   static_cast<off_t>(offset + done));
    });
    if (n < 0) Fail();
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void File::Write(ByteSpan bytes) {
  iovec part{const_cast<uint8_t*>(bytes.data), bytes.size};
  Write(&part, 1);
}

void File::Write(iovec* parts, int count) {
  while (count > 0) {
    ssize_t n = RetryInterrupted([&] { return writev(fd_, parts, count); });
    if (n < 0) Fail();
    for (; count > 0 && static_cast<size_t>(n) >= parts->iov_len; ++parts, --count) {
      n -= static_cast<ssize_t>(parts->iov_len);
    }
    if (count > 0) {
      parts->iov_base = static_cast<uint8_t*>(parts->iov_base) + n;
      parts->iov_len -= static_cast<size_t>(n);
    }
  }
}

void File::Reserve(uint64_t bytes) {
  if (bytes == 0) return;
  if (RetryInterrupted([&] { return fallocate(fd_, 0, 0, static_cast<off_t>(bytes)); }) == 0)
    return;
  if (errno != EOPNOTSUPP) Fail();
  // posix_fallocate writes to every block instead; it returns its error and does not set errno.
  int code = EINTR;
  while (code == EINTR) code = posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (code != 0) throw IoError(code, path_);
}

void File::Truncate(uint64_t bytes) {
  if (RetryInterrupted([&] { return ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0) Fail();
}

void File::StartSync(uint64_t begin, uint64_t bytes) {
  sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void File::Sync() {
  if (RetryInterrupted([&] { return fsync(fd_); }) != 0) Fail();
}

void File::Close() {
  // close is not retried on EINTR: Linux has closed the descriptor even then.
  if (close(std::exchange(fd_, -1)) != 0 && errno != EINTR) Fail();
}

}  // namespace cachecd
