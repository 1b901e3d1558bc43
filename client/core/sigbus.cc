#include "sigbus.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace cachecd {
namespace {

// What the handler knows of its thread. Initial-exec, where the compiler would otherwise call an
// allocating function on first use, which a handler must not.
struct Watched {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> faulted{false};
};

thread_local Watched watched __attribute__((tls_model("initial-exec")));

struct sigaction before;
uintptr_t page_bytes;

void Handle(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address >= watched.begin.load(std::memory_order_relaxed) &&
      address < watched.end.load(std::memory_order_relaxed)) {
    void* page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
    const void* zeros =
        mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == page) {
      watched.faulted.store(true, std::memory_order_relaxed);
      errno = saved;
      return;
    }
  }
  errno = saved;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    // Returning repeats the access, which then ends the process as if we were not there.
    signal(SIGBUS, SIG_DFL);
  }
}

bool Install() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, &before) == 0;
}

}  // namespace

BusGuard::BusGuard() {
  static const bool installed = Install();
  static_cast<void>(installed);
}

BusGuard::~BusGuard() { Watch({}); }

void BusGuard::Watch(ByteSpan mapping) {
  const auto begin = reinterpret_cast<uintptr_t>(mapping.data);
  watched.faulted.store(false, std::memory_order_relaxed);
  watched.begin.store(begin, std::memory_order_relaxed);
  watched.end.store(begin + mapping.size, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

bool BusGuard::Faulted() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return watched.faulted.load(std::memory_order_relaxed);
}

}  // namespace cachecd
