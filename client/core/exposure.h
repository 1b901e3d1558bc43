// What a trainer waits for: the activity of the thread that makes its next batch, while it waits.
// Work that is hidden behind the training step is not counted.

#ifndef CACHECD_CORE_EXPOSURE_H_
#define CACHECD_CORE_EXPOSURE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

namespace cachecd {

enum class Activity : uint8_t {
  kOther,     // no thread has begun the batch: a thread must wake up, or be given a processor
  kOpen,      // opens files, finds the records of a batch
  kRead,      // brings pages of records into memory
  kVerify,    // parses records, copies values and computes their CRC, in one sweep
  kDecode,    // decodes pictures
  kAssemble,  // allocates and completes columns
  kCopy,      // copies columns to memory of the framework, in the thread of the trainer
  kGil,       // the batch is ready, but another thread has the GIL
};

constexpr std::array<const char*, 8> kActivities = {"other",  "open",     "read", "verify",
                                                    "decode", "assemble", "copy", "gil"};

// Set by one thread, read by others. Has no effect on memory order.
class ActivityMark {
 public:
  void Set(Activity activity) { activity_.store(activity, std::memory_order_relaxed); }
  Activity Get() const { return activity_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Activity> activity_{Activity::kOther};
};

// Seconds by activity.
struct Exposed {
  using Clock = std::chrono::steady_clock;

  void Add(Activity activity, Clock::time_point from, Clock::time_point until) {
    seconds[static_cast<size_t>(activity)] += std::chrono::duration<double>(until - from).count();
  }

  std::array<double, kActivities.size()> seconds{};
};

// The waits of a trainer. Not thread-safe.
struct Waits {
  using Clock = Exposed::Clock;
  using Span = std::tuple<double, double, const char*>;  // seconds, begin, the longest activity

  static constexpr double kShown = 1e-3;  // seconds; a timeline does not show shorter waits
  static constexpr size_t kMostSpans = 64;

  void Add(const Exposed& wait, Clock::time_point begin, Clock::time_point end) {
    const double elapsed = std::chrono::duration<double>(end - begin).count();
    seconds += elapsed;
    for (size_t i = 0; i < kActivities.size(); ++i) exposed.seconds[i] += wait.seconds[i];
    if (elapsed < kShown) return;
    const auto most = std::max_element(wait.seconds.begin(), wait.seconds.end());
    longest.emplace_back(elapsed, std::chrono::duration<double>(begin.time_since_epoch()).count(),
                         kActivities[static_cast<size_t>(most - wait.seconds.begin())]);
    std::push_heap(longest.begin(), longest.end(), std::greater<Span>());
    if (longest.size() <= kMostSpans) return;
    std::pop_heap(longest.begin(), longest.end(), std::greater<Span>());
    longest.pop_back();
  }

  double seconds = 0;
  Exposed exposed;            // of `seconds`
  std::vector<Span> longest;  // a heap, the shortest first
};

}  // namespace cachecd

#endif  // CACHECD_CORE_EXPOSURE_H_
