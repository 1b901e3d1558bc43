#include "mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "errors.h"
#include "file.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // since Linux 5.14; older headers lack it
#endif

namespace cachecd {
namespace {

// Bytes that Prefault populates at a time. On a cold disk, this is nearly as fast as one sweep, and
// it costs one system call per hundred or so small records.
constexpr uint64_t kGranule = 512 << 10;

// kStep: bytes requested from the disk at a time. kSample: the distance between the bytes that are
// probed for being in memory; eviction removes more than that.
constexpr uint64_t kStep = 8 << 20;
constexpr uint64_t kSample = 512 << 10;

// Returns false if the kernel (before 4.14) or the file system cannot tell.
bool SeemsInMemory(const File& file, uint64_t begin, uint64_t end) {
  uint8_t byte;
  const iovec one{&byte, 1};
  for (uint64_t at = begin; at < end; at += kSample) {
    if (preadv2(file.fd(), &one, 1, static_cast<off_t>(at), RWF_NOWAIT) != 1) return false;
  }
  return preadv2(file.fd(), &one, 1, static_cast<off_t>(end - 1), RWF_NOWAIT) == 1;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const File file = File::Open(path);
  struct stat status;
  if (fstat(file.fd(), &status) != 0) throw IoError(errno, path);
  size_ = static_cast<uint64_t>(status.st_size);
  inode_ = status.st_ino;
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) throw IoError(errno, path);
  data_ = static_cast<const uint8_t*>(mapped);
  // A forked child must not read the mapping, but would keep the file's space occupied.
  madvise(mapped, size_, MADV_DONTFORK);
  resident_ = std::make_unique<uint8_t[]>((size_ + kGranule - 1) / kGranule);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

bool MappedFile::Populate(uint64_t begin, uint64_t end) const {
  int result;
  do {
    result = madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // If the kernel does not know the advice (EINVAL) or lacks memory for page tables, page faults
  // load the pages later.
  return result == 0 || errno == EINVAL || errno == ENOMEM || errno == EAGAIN;
}

void MappedFile::Prefault(uint64_t begin, uint64_t end) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto is_resident = [this](uint64_t granule) {
    return __atomic_load_n(&resident_[granule], __ATOMIC_RELAXED) != 0;
  };
  const uint64_t beyond = (end + kGranule - 1) / kGranule;
  for (uint64_t granule = begin / kGranule; granule < beyond;) {
    // One call for a run of granules makes one request to the disk.
    uint64_t after = granule;
    while (after < beyond && !is_resident(after)) ++after;
    if (after == granule) {
      ++granule;
      continue;
    }
    if (!Populate(granule * kGranule, std::min(size_, after * kGranule))) {
      // The unreadable part may lie outside the requested range, so populate only the range.
      Populate(begin / page * page, end);
      return;
    }
    for (; granule < after; ++granule) {
      __atomic_store_n(&resident_[granule], uint8_t{1}, __ATOMIC_RELAXED);
    }
  }
}

void MappedFile::ReadAhead(const std::function<bool()>& keep_going) const {
  if (size_ == 0) return;
  try {
    const File file = File::Open(path_);
    struct stat status;
    // Another file may have replaced this one under its name.
    if (fstat(file.fd(), &status) != 0 || status.st_ino != inode_) return;
    for (uint64_t at = 0; at < size_ && keep_going(); at += kStep) {
      const uint64_t end = std::min(size_, at + kStep);
      if (SeemsInMemory(file, at, end)) continue;
      posix_fadvise(file.fd(), static_cast<off_t>(at), static_cast<off_t>(end - at),
                    POSIX_FADV_WILLNEED);
      // Reading the last byte waits until the disk has read the whole step.
      uint8_t last;
      file.ReadAt(&last, 1, end - 1);
    }
  } catch (const IoError&) {
  }
}

}  // namespace cachecd
