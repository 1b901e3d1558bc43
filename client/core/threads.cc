#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

namespace cachecd {

std::thread StartThread(std::function<void()> body) {
  // A new thread inherits its creator's signal mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // A thread's own fault always raises these signals in that thread; if blocked, they are fatal.
  for (const int own : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigdelset(&all, own);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread([body = std::move(body)] {
      // With SCHED_BATCH, a thread that is woken to compute does not preempt the running thread,
      // which is the trainer's.
      sched_param none{};
      sched_setscheduler(0, SCHED_BATCH, &none);
      const DefaultFloats floats;
      body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), "cachecd");
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

void RunThreads(size_t count, const std::function<void()>& body) {
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < count; ++i) threads.push_back(StartThread(body));
  } catch (const std::system_error&) {
    // The threads that were started do the work.
  }
  body();
  for (std::thread& thread : threads) thread.join();
}

size_t AvailableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace cachecd
