// Threads that leave signals to Python's main thread, and numbers as they are.

#ifndef CACHECD_CORE_THREADS_H_
#define CACHECD_CORE_THREADS_H_

#include <cfenv>
#include <cstddef>
#include <functional>
#include <thread>

namespace cachecd {

// While it lives, its thread computes with floats as IEEE 754 has it: whoever started the thread
// may have had denormals flushed or results rounded otherwise, which threads inherit.
class DefaultFloats {
 public:
  DefaultFloats() {
    fegetenv(&before_);
    fesetenv(FE_DFL_ENV);
  }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;
  ~DefaultFloats() { fesetenv(&before_); }

 private:
  fenv_t before_;
};

// A thread with DefaultFloats, in which every signal is blocked that the kernel could hand to any
// thread. `body` must not throw. std::system_error if there can be no more threads.
std::thread StartThread(std::function<void()> body);

// Runs `body` in `count` threads, of which the caller is one, and waits for all of them. Fewer
// threads do if there can be no more.
void RunThreads(size_t count, const std::function<void()>& body);

// How many processors this process may use.
size_t AvailableProcessors();

}  // namespace cachecd

#endif  // CACHECD_CORE_THREADS_H_
