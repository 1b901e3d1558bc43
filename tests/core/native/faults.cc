// Pages that are cut off under two threads that watch them: one touches them, both get to know.
//
//     faults

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "harness.h"
#include "sigbus.h"

namespace cachecd::native {
namespace {

constexpr size_t kPage = 1 << 16;  // or less, on every processor
constexpr size_t kPages = 3;

// A file of ones, mapped, and cut off before it is touched.
class CutOff {
 public:
  CutOff() {
    const std::string path = ScratchPath("cut");
    WriteFile(path, Span(Bytes(kPages * kPage, 1)));
    const int fd = open(path.c_str(), O_RDWR);
    EXPECT(fd >= 0);
    void* mapped = mmap(nullptr, kPages * kPage, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT(mapped != MAP_FAILED);
    data_ = static_cast<uint8_t*>(mapped);
    EXPECT(ftruncate(fd, 0) == 0);
    close(fd);
  }
  ~CutOff() { munmap(data_, kPages * kPage); }

  ByteSpan bytes() const { return {data_, kPages * kPage}; }
  // The page that another thread's handler puts there meanwhile is no race to this: both read
  // zeros.
  __attribute__((no_sanitize("thread"))) uint8_t Touch(size_t page) const {
    return *static_cast<volatile uint8_t*>(data_ + page * kPage);
  }

 private:
  uint8_t* data_;
};

void AFaultIsTheThreadsOwn(const CutOff& file) {
  const BusGuard guard;
  BusGuard::Watch(file.bytes());
  EXPECT(!BusGuard::Faulted() && !BusGuard::Disturbed());
  EXPECT(file.Touch(0) == 0);
  EXPECT(BusGuard::Faulted() && BusGuard::Disturbed());
  BusGuard::Watch(file.bytes());
  EXPECT(file.Touch(0) == 0);  // as it stays
  EXPECT(!BusGuard::Faulted() && !BusGuard::Disturbed());
}

void AFaultElsewhereDisturbsWhoeverWatches(const CutOff& file) {
  const BusGuard guard;
  BusGuard::Watch(file.bytes());
  std::thread other([&] {
    const BusGuard own;
    BusGuard::Watch(file.bytes());
    EXPECT(file.Touch(1) == 0);
    EXPECT(BusGuard::Faulted());
  });
  other.join();
  EXPECT(BusGuard::Disturbed());  // without having touched it
  EXPECT(file.Touch(1) == 0);
  EXPECT(!BusGuard::Faulted());
  BusGuard::Watch(file.bytes());
  EXPECT(!BusGuard::Disturbed());
}

// Threads that touch the same pages at the same time: each replaces them or finds them replaced.
void AllTouchTheSame(const CutOff& file) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const BusGuard guard;
      BusGuard::Watch(file.bytes());
      EXPECT(file.Touch(2) == 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cachecd::native

int main() {
  using namespace cachecd::native;
  for (int round = 0; round < 20; ++round) {
    const CutOff file;
    AFaultIsTheThreadsOwn(file);
    AFaultElsewhereDisturbsWhoeverWatches(file);
    AllTouchTheSame(file);
  }
  return 0;
}
