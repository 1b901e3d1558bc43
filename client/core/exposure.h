// What a trainer waits for: the activity of the threads that make its batches, while it waits.
//
// Activities that are hidden behind the training step cost nothing, so they are not counted.

#ifndef CACHECD_CORE_EXPOSURE_H_
#define CACHECD_CORE_EXPOSURE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cachecd {

enum class Activity : uint8_t {
  kOpen,      // opens files, finds the records of a batch, or no thread has begun the batch
  kRead,      // brings pages of records into memory
  kVerify,    // parses records, copies values and computes their CRC, in one sweep
  kDecode,    // decodes pictures
  kAssemble,  // allocates and completes columns
  kCopy,      // copies columns to memory of the framework, in the thread of the trainer
  kGil,       // the batch is ready, but another thread has the GIL
};

constexpr std::array<const char*, 7> kActivities = {"open",     "read", "verify", "decode",
                                                    "assemble", "copy", "gil"};

// Set by one thread, read by others. Has no effect on memory order.
class ActivityMark {
 public:
  void Set(Activity activity) { activity_.store(activity, std::memory_order_relaxed); }
  Activity Get() const { return activity_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Activity> activity_{Activity::kOpen};
};

// Seconds by activity.
class Exposed {
 public:
  using Clock = std::chrono::steady_clock;

  void Add(Activity activity, Clock::time_point from, Clock::time_point until) {
    seconds_[static_cast<size_t>(activity)] += std::chrono::duration<double>(until - from).count();
  }
  void Add(const Exposed& other) {
    for (size_t i = 0; i < seconds_.size(); ++i) seconds_[i] += other.seconds_[i];
  }
  // The activity with the most seconds.
  size_t Longest() const {
    return static_cast<size_t>(std::max_element(seconds_.begin(), seconds_.end()) -
                               seconds_.begin());
  }
  const std::array<double, kActivities.size()>& seconds() const { return seconds_; }

 private:
  std::array<double, kActivities.size()> seconds_{};
};

// All waits of a trainer: their seconds, and the longest of them. Not thread-safe.
class Waits {
 public:
  using Clock = Exposed::Clock;

  struct Span {
    double seconds;
    double begin;     // on the steady clock
    size_t activity;  // of most of the time
  };

  void Add(const Exposed& exposed, Clock::time_point begin, Clock::time_point end) {
    const double seconds = std::chrono::duration<double>(end - begin).count();
    seconds_ += seconds;
    exposed_.Add(exposed);
    if (seconds < kShown) return;
    const double at = std::chrono::duration<double>(begin.time_since_epoch()).count();
    const auto is_longer = [](const Span& a, const Span& b) { return a.seconds > b.seconds; };
    longest_.push_back({seconds, at, exposed.Longest()});
    std::push_heap(longest_.begin(), longest_.end(), is_longer);
    if (longest_.size() <= kMostSpans) return;
    std::pop_heap(longest_.begin(), longest_.end(), is_longer);  // the shortest
    longest_.pop_back();
  }
  void Clear() {
    seconds_ = 0;
    exposed_ = {};
  }

  double seconds() const { return seconds_; }
  const Exposed& exposed() const { return exposed_; }
  // Returns the longest waits since the last call, in no order.
  std::vector<Span> TakeLongest() { return std::exchange(longest_, {}); }

 private:
  static constexpr double kShown = 1e-3;  // seconds; a timeline does not show shorter waits
  static constexpr size_t kMostSpans = 64;

  double seconds_ = 0;
  Exposed exposed_;
  std::vector<Span> longest_;  // a heap, the shortest first
};

}  // namespace cachecd

#endif  // CACHECD_CORE_EXPOSURE_H_
