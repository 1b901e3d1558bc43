#include "mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "errors.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older headers lack it
#endif

namespace cachecd {
namespace {

// What is brought in at a time: on a cold disk nearly as fast as one sweep, and a system call for
// every hundred or so of the small records that are read from mappings.
constexpr uint64_t kGranule = 512 << 10;

// A quarter of the descriptors that the process may have is all that we take of them.
size_t MostDescriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<size_t>(limit.rlim_cur) / 4;
}

std::atomic<size_t> descriptors{0};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  File file = File::Open(path);
  struct stat status;
  if (fstat(file.fd(), &status) != 0) throw IoError(errno, path);
  size_ = static_cast<uint64_t>(status.st_size);
  inode_ = status.st_ino;
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) throw IoError(errno, path);
  data_ = static_cast<const uint8_t*>(mapped);
  resident_ = std::make_unique<uint8_t[]>((size_ + kGranule - 1) / kGranule);
  if (descriptors.fetch_add(1, std::memory_order_relaxed) < MostDescriptors()) {
    kept_.emplace(std::move(file));
  } else {
    descriptors.fetch_sub(1, std::memory_order_relaxed);
  }
}

MappedFile::~MappedFile() {
  if (kept_) descriptors.fetch_sub(1, std::memory_order_relaxed);
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

int MappedFile::Populate(uint64_t begin, uint64_t end) const {
  int result;
  do {
    result = madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // A kernel that does not know the advice (EINVAL), or lacks memory for page tables, leaves it to
  // the faults.
  return result == 0 || errno == EINVAL || errno == ENOMEM || errno == EAGAIN ? 0 : errno;
}

int MappedFile::Prefault(uint64_t begin, uint64_t end) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto is_resident = [this](uint64_t granule) {
    return __atomic_load_n(&resident_[granule], __ATOMIC_RELAXED) != 0;
  };
  const uint64_t beyond = (end + kGranule - 1) / kGranule;
  for (uint64_t granule = begin / kGranule; granule < beyond;) {
    // One call for a run of granules: one request to the disk.
    uint64_t after = granule;
    while (after < beyond && !is_resident(after)) ++after;
    if (after == granule) {
      ++granule;
      continue;
    }
    if (Populate(granule * kGranule, std::min(size_, after * kGranule)) != 0) {
      // What cannot be read may lie in the granules, but not in what was asked for.
      return Populate(begin / page * page, end);
    }
    for (; granule < after; ++granule) {
      __atomic_store_n(&resident_[granule], uint8_t{1}, __ATOMIC_RELAXED);
    }
  }
  return 0;
}

template <typename Use>
int MappedFile::WithDescriptor(Use use) const {
  try {
    if (kept_) return use(*kept_);
    const File file = File::Open(path_);
    struct stat status;
    if (fstat(file.fd(), &status) != 0) return errno;
    // Another file has taken its name.
    return status.st_ino == inode_ ? use(file) : ESTALE;
  } catch (const IoError& error) {
    return error.code;
  }
}

int MappedFile::ReadAt(void* to, size_t size, uint64_t offset) const {
  return WithDescriptor([&](const File& file) {
    // A file cut short is what a fault in the mapping would be.
    return file.ReadAt(to, size, offset) == size ? 0 : EFAULT;
  });
}

void MappedFile::ReadAhead(uint64_t begin, uint64_t end) const {
  if (begin >= end) return;
  WithDescriptor([&](const File& file) {
    const auto size = static_cast<off_t>(end - begin);
    const int code = posix_fadvise(file.fd(), static_cast<off_t>(begin), size, POSIX_FADV_WILLNEED);
    // Reading the last byte waits for it, and so for the sweep.
    uint8_t last;
    file.ReadAt(&last, 1, end - 1);
    return code;
  });
}

}  // namespace cachecd
