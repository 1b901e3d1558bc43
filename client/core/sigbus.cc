#include "sigbus.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace cachecd {
namespace {

// The handler's state for its thread. The TLS model is initial-exec, because otherwise the compiler
// might call an allocating function on first use, which a signal handler must not do.
struct Watched {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> faulted{false};
  std::atomic<uint64_t> replaced{0};  // the global `replaced` at the last Watch
  std::atomic<bool> passing{false};   // another handler is running
  std::atomic<uintptr_t> passed{0};   // the address of the last fault passed on
};

thread_local Watched watched __attribute__((tls_model("initial-exec")));

// Counts of replaced pages. `replacing` counts before a replacement, so a thread that sees zeros
// sees the count. `replaced` counts after a replacement, so a thread that sees the count sees
// zeros.
std::atomic<uint64_t> replacing{0};
std::atomic<uint64_t> replaced{0};

// Other handlers that were found in place of this one; a program has one or two.
constexpr size_t kMostOthers = 8;
struct sigaction others[kMostOthers];
size_t num_others = 0;
std::atomic<const struct sigaction*> other{nullptr};  // the handler found last
std::mutex installing;                                // guards `others` and `num_others`

uintptr_t page_bytes;

bool Replace(uintptr_t address) {
  void* page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
  replacing.fetch_add(1);
  const void* zeros =
      mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  replaced.fetch_add(1);
  return zeros == page;
}

// Calls the other handler. Returns false if there is none, or if it did not repair the same fault
// last time. Returns false as well for a signal that the other handler raises for its predecessor
// (as faulthandler does), because the predecessor may be this handler.
bool PassOn(int number, siginfo_t* info, void* context) {
  const struct sigaction* next = other.load();
  if (watched.passing.load(std::memory_order_relaxed)) return false;
  if (info->si_code > 0) {
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (watched.passed.exchange(address, std::memory_order_relaxed) == address) return false;
  }
  watched.passing.store(true, std::memory_order_relaxed);
  const bool detailed = (next->sa_flags & SA_SIGINFO) != 0;
  const bool there = detailed || (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN);
  if (detailed) {
    next->sa_sigaction(number, info, context);
  } else if (there) {
    next->sa_handler(number);
  }
  watched.passing.store(false, std::memory_order_relaxed);
  return there;
}

void Handle(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code > 0 && address >= watched.begin.load(std::memory_order_relaxed) &&
      address < watched.end.load(std::memory_order_relaxed) && Replace(address)) {
    watched.faulted.store(true, std::memory_order_relaxed);
  } else if (!PassOn(number, info, context)) {
    // Returning repeats the access, which then ends the process as without this handler.
    signal(SIGBUS, SIG_DFL);
    if (info->si_code <= 0) raise(number);  // sent by a process, so no access is repeated
  }
  errno = saved;
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == Handle;
}

bool SameHandler(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_flags == b.sa_flags &&
         ((a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                         : a.sa_handler == b.sa_handler);
}

void Install() {
  struct sigaction found;
  if (sigaction(SIGBUS, nullptr, &found) != 0 || IsOurs(found)) return;
  const std::lock_guard<std::mutex> lock(installing);
  if (sigaction(SIGBUS, nullptr, &found) != 0 || IsOurs(found)) return;
  size_t known = 0;
  while (known < num_others && !SameHandler(others[known], found)) ++known;
  if (known == kMostOthers) return;  // other code keeps replacing this handler
  if (known == num_others) others[num_others++] = found;
  other.store(&others[known]);
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  // Not deferred, so that a signal that the other handler raises arrives while it runs.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

BusGuard::BusGuard() { Install(); }

BusGuard::~BusGuard() { Watch({}); }

void BusGuard::Watch(ByteSpan mapping) {
  const auto begin = reinterpret_cast<uintptr_t>(mapping.data);
  watched.faulted.store(false, std::memory_order_relaxed);
  watched.replaced.store(replaced.load(std::memory_order_acquire), std::memory_order_relaxed);
  watched.begin.store(begin, std::memory_order_relaxed);
  watched.end.store(begin + mapping.size, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

bool BusGuard::Faulted() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return watched.faulted.load(std::memory_order_relaxed);
}

bool BusGuard::Disturbed() {
#ifndef __SANITIZE_THREAD__  // TSan supports neither fences nor replaced pages
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return replacing.load(std::memory_order_relaxed) !=
         watched.replaced.load(std::memory_order_relaxed);
}

}  // namespace cachecd
