#include "harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

// What is tested here is what the files hold, not that they outlive the machine; and waiting for
// the disk would take most of the time.
extern "C" int fsync(int) { return 0; }

namespace cachecd::native {
namespace {

struct Folder {
  Folder() {
    const char* base = std::getenv("TMPDIR");
    path = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/cachecd-XXXXXX";
    EXPECT(mkdtemp(path.data()) != nullptr);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

void Fail(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: expected %s\n", file, line, condition);
  std::abort();
}

void WriteFile(const std::string& path, ByteSpan bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  EXPECT(fd >= 0);
  EXPECT(write(fd, bytes.data, bytes.size) == static_cast<ssize_t>(bytes.size));
  close(fd);
}

Bytes ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT(fd >= 0);
  struct stat status;
  EXPECT(fstat(fd, &status) == 0);
  Bytes bytes(static_cast<size_t>(status.st_size));
  EXPECT(read(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(fd);
  return bytes;
}

std::string ScratchPath(const std::string& name) {
  static const Folder folder;
  return folder.path + "/" + name;
}

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace cachecd::native
