// Threads that leave signals to Python's main thread, and compute with IEEE 754 floats.

#ifndef CACHECD_CORE_THREADS_H_
#define CACHECD_CORE_THREADS_H_

#include <cfenv>
#include <cstddef>
#include <functional>
#include <thread>

namespace cachecd {

// Sets the default floating-point environment of its thread for its lifetime. A thread inherits the
// environment of its creator, which may flush denormals or round differently.
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

// Starts a thread with DefaultFloats. The thread blocks all signals that the kernel could deliver
// to any thread. `body` must not throw. Throws std::system_error if no thread can be created.
std::thread StartThread(std::function<void()> body);

// Runs `body` in `count` threads, including the caller, and waits for all of them. If no more
// threads can be created, uses fewer.
void RunThreads(size_t count, const std::function<void()>& body);

// Returns the number of processors that this process may use.
size_t AvailableProcessors();

}  // namespace cachecd

#endif  // CACHECD_CORE_THREADS_H_
