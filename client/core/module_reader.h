// BatchReader for Python: handles the GIL, signals and forks.

#ifndef CACHECD_CORE_MODULE_READER_H_
#define CACHECD_CORE_MODULE_READER_H_

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "exposure.h"
#include "module.h"
#include "reader.h"

namespace cachecd {

// A signal waits at most this long while next() waits.
constexpr auto kSignalInterval = std::chrono::milliseconds(100);

// If a wait for the GIL takes this long, a computing thread shares the GIL, and waits of 5 ms
// follow. So the next call requests the GIL at once, not when a batch is ready. By the time it
// holds the GIL, a batch is mostly ready.
constexpr auto kContended = std::chrono::milliseconds(1);

// At most this many ready batches become Python objects at a time. A training step evicts this code
// (and torch's) from the processor's caches. At 600 MB/s, a batch of two tensors took the trainer
// 45 us if made alone, and 9 us if made with 31 others.
constexpr size_t kMostAtOnce = 32;

// next() calls `pulse` at most this often, also while it waits.
constexpr auto kPulse = std::chrono::seconds(1);

// A fill of the queue, 0..1, is counted at the nearest of this many levels.
constexpr size_t kQueueLevels = 32;

// Readers whose threads must end before the interpreter does. Guarded by the GIL. Never destroyed,
// because Python objects may outlive static objects.
inline std::set<std::shared_ptr<BatchReader>>& LiveReaders() {
  static auto* readers = new std::set<std::shared_ptr<BatchReader>>;
  return *readers;
}

// Calls Python code. If the interpreter ends meanwhile, parks the daemon thread.
template <typename... Arguments>
nb::object Call(const nb::object& callee, const Arguments&... arguments) {
  try {
    return callee(arguments...);
  } catch (abi::__forced_unwind&) {
    Park();
  }
}

// Marks of a profiler, which runs while flags[flag] is true. `make` makes a context manager.
struct Marks {
  nb::dict flags;
  nb::object flag;
  nb::object make;
};

// Enters a context manager for its lifetime.
class Mark {
 public:
  explicit Mark(const nb::object& make) : mark_(Call(make)) { Call(mark_.attr("__enter__")); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    try {
      Call(mark_.attr("__exit__"), nb::none(), nb::none(), nb::none());
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the mark of a profiler");
    }
  }

 private:
  const nb::object mark_;
};

class PyReader {
 public:
  PyReader(std::vector<FileSet::Input> files, ReaderOptions options, nb::dict wrap, nb::set dlpack,
           size_t most_at_once, nb::object report, nb::object pulse, std::optional<Marks> marks)
      : wrap_(std::move(wrap)),
        dlpack_(std::move(dlpack)),
        most_at_once_(most_at_once),
        report_(std::move(report)),
        pulse_(std::move(pulse)),
        marks_(std::move(marks)),
        position_(options.start) {
    {
      const WithoutGil release;
      reader_ = std::make_shared<BatchReader>(std::move(files), std::move(options));
    }
    LiveReaders().insert(reader_);
  }
  PyReader(const PyReader&) = delete;
  PyReader& operator=(const PyReader&) = delete;

  ~PyReader() {
    // In a forked child, its threads and mutexes must not be touched: it stays in LiveReaders().
    if (reader_->forked()) return;
    LiveReaders().erase(reader_);
    Close();
  }

  void Close() {
    // Empties ready_ before its batches are destroyed, because their destructors may call next().
    std::deque<Ready>().swap(ready_);
    const auto release = ReleaseUnlessEnded();
    reader_->Close();
  }

  void Restart(uint64_t start, std::optional<uint64_t> seed, std::optional<uint64_t> augment) {
    std::deque<Ready>().swap(ready_);
    bytes_read_ = 0;
    zeros_ = 0;
    waits_.seconds = 0;
    waits_.exposed = {};
    queue_filled_ = 0;
    queue_counts_.assign(kQueueLevels, 0);
    answered_.reset();
    reported_ = 0;
    ++pass_;
    position_ = start;
    const auto release = ReleaseUnlessEnded();
    reader_->Restart(start, seed, augment);
  }

  nb::object Next() {
    // First, because an interrupt in it must not lose a batch.
    if (!pulse_.is_none()) Pulse(Clock::now());
    std::optional<Mark> mark;
    if (IsProfiled()) mark.emplace(marks_->make);
    nb::object batch = Take();
    answered_ = Clock::now();
    return batch;
  }

  nb::list Findings(size_t from = 0) const {
    nb::list found;
    const std::vector<CorruptRecord> all = reader_->findings();
    for (size_t i = from; i < all.size(); ++i) {
      found.append(nb::make_tuple(PathObject(all[i].path), all[i].offset, PathObject(all[i].why)));
    }
    return found;
  }

  const BatchReader& reader() const { return *reader_; }
  uint64_t pass() const { return pass_; }
  uint64_t position() const { return position_; }
  double seconds_waited() const { return waits_.seconds; }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t zeros() const { return zeros_; }
  double queue_filled() const { return queue_filled_; }
  double queue() const { return reader_->Filled(); }
  const std::vector<uint64_t>& queue_counts() const { return queue_counts_; }
  nb::dict seconds_by_stage() const {
    nb::dict seconds;
    for (size_t i = 0; i < kActivities.size(); ++i) {
      seconds[kActivities[i]] = waits_.exposed.seconds[i];
    }
    return seconds;
  }
  nb::list TakeSpans() {
    nb::list spans;
    for (const auto& [seconds, begin, activity] : std::exchange(waits_.longest, {})) {
      spans.append(nb::make_tuple(activity, begin, seconds));
    }
    return spans;
  }
  double seconds_idle() const {
    if (!answered_) return 0;
    return std::chrono::duration<double>(Clock::now() - *answered_).count();
  }

 private:
  using Clock = Exposed::Clock;

  // One wait, which is counted when it ends.
  class OneWait {
   public:
    explicit OneWait(Waits* waits) : waits_(waits) {}
    OneWait(const OneWait&) = delete;
    OneWait& operator=(const OneWait&) = delete;
    ~OneWait() { Count(); }

    // Counts the wait until now. What follows is another wait.
    void Count() {
      const Clock::time_point now = Clock::now();
      waits_->Add(exposed, begin_, now);
      begin_ = now;
      exposed = {};
    }

    Exposed exposed;

   private:
    Waits* const waits_;
    Clock::time_point begin_ = Clock::now();
  };

  // A batch as next() returns it.
  struct Ready {
    nb::object columns;
    uint64_t record_bytes = 0;
    size_t memory_bytes = 0;
    uint64_t zeros = 0;
    // If wrapping failed: the exception's type, and the exception itself until it is raised. Not
    // longer, because its traceback may hold an owner of the reader.
    std::string lost_to = {};
    nb::object raises = {};
  };

  bool IsProfiled() const {
    if (!marks_) return false;
    PyObject* const flag = PyDict_GetItem(marks_->flags.ptr(), marks_->flag.ptr());
    return flag != nullptr && PyObject_IsTrue(flag) == 1;
  }

  // Returns the next batch, or None at the end.
  nb::object Take() {
    // Wrapping and reporting run Python code: other threads may then take the ready batches.
    do {
      while (reader_->forked() || ready_.empty()) {
        std::optional<Batch> batch = reader_->TryNext();
        if (!batch && reader_->AtEnd()) return nb::none();
        if (!batch) batch = Wait();
        if (!batch && !ready_.empty()) continue;
        if (!batch) return nb::none();
        MakeReady(std::move(*batch));
        MakeMoreReady();
      }
    } while (Report());
    if (!ready_.front().lost_to.empty()) RaiseLost(&ready_.front());
    Ready next = std::move(ready_.front());
    ready_.pop_front();
    bytes_read_ += next.record_bytes;
    zeros_ += next.zeros;
    const double filled = reader_->Delivered(next.memory_bytes);
    queue_filled_ += filled;
    ++queue_counts_[static_cast<size_t>(std::lround(filled * (kQueueLevels - 1)))];
    position_ = reader_->After(position_);
    return std::move(next.columns);
  }

  bool IsPulseDue(Clock::time_point now) const { return now >= next_pulse_ && !pulse_.is_none(); }

  void Pulse(Clock::time_point now) {
    if (!IsPulseDue(now)) return;
    next_pulse_ = now + kPulse;
    Call(pulse_);
  }

  // Each thread ends at its next record, but that record may wait for the disk.
  std::unique_ptr<WithoutGil> ReleaseUnlessEnded() const {
    return reader_->Ended() ? nullptr : std::make_unique<WithoutGil>();
  }

  // An exception of wrapping is raised when the batch's turn comes. KeyboardInterrupt and the like
  // do not concern the batch, so they are raised at once.
  void MakeReady(Batch batch) {
    Ready ready{{}, batch.record_bytes, batch.memory_bytes, batch.zeros};
    try {
      if (most_at_once_ == 1) {
        OneWait copy(&waits_);
        const Clock::time_point begin = Clock::now();
        ready.columns = ToDict(std::move(batch));
        copy.exposed.Add(Activity::kCopy, begin, Clock::now());
      } else {
        ready.columns = ToDict(std::move(batch));
      }
    } catch (nb::python_error& error) {
      ready.lost_to = nb::cast<std::string>(error.type().attr("__name__"));
      const bool leaves = !error.matches(PyExc_Exception);
      if (!leaves) ready.raises = nb::borrow(error.value());
      ready_.push_back(std::move(ready));
      if (leaves) throw;
      return;
    } catch (const std::bad_alloc&) {
      ready.lost_to = "MemoryError";
      ready_.push_back(std::move(ready));
      throw;
    }
    ready_.push_back(std::move(ready));
  }

  void MakeMoreReady() {
    for (size_t made = 1; made < most_at_once_; ++made) {
      if (!ready_.empty() && !ready_.back().lost_to.empty()) return;
      std::optional<Batch> batch;
      try {
        batch = reader_->TryNext();
      } catch (...) {
        return;  // the reader throws it again at the batch's turn
      }
      if (!batch) return;
      MakeReady(std::move(*batch));
    }
  }

  // Reports corrupt records found since the last report, if `report_` is set. True if any.
  bool Report() {
    if (report_.is_none() || reader_->num_findings() == reported_) return false;
    const nb::list found = Findings(reported_);
    reported_ += nb::len(found);
    Call(report_, found);
    return true;
  }

  [[noreturn]] static void RaiseLost(Ready* ready) {
    const nb::object raises = std::move(ready->raises);
    if (!raises.is_valid()) {
      throw UsageError("a batch is lost, because " + ready->lost_to +
                       " was raised while it was wrapped: restart the reader");
    }
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raises.ptr())), raises.ptr());
    throw nb::python_error();
  }

  // Returns the next batch; none at the end, or once another thread has filled ready_.
  std::optional<Batch> Wait() {
    OneWait wait(&waits_);
    std::optional<Batch> batch;
    bool early = contended_;
    while (!batch && ready_.empty() && !reader_->AtEnd()) {
      Clock::time_point asked;
      std::optional<Activity> activity;
      {
        const WithoutGil release;
        activity =
            reader_->Wait(early ? std::chrono::milliseconds(0) : kSignalInterval, &wait.exposed);
        asked = Clock::now();
      }
      const Clock::time_point now = Clock::now();
      contended_ = now - asked > kContended;
      // If the GIL was requested early, the batch may have become ready meanwhile.
      Clock::time_point ready = activity ? now : asked;
      if (activity && contended_) ready = std::clamp(reader_->ReadyAt(), asked, now);
      if (activity) wait.exposed.Add(*activity, asked, ready);
      wait.exposed.Add(Activity::kGil, ready, now);
      early = false;
      if (IsPulseDue(now)) {
        wait.Count();
        Pulse(now);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      batch = reader_->TryNext();
    }
    return batch;
  }

  nb::object ToDict(Batch batch) {
    nb::dict columns;
    for (size_t i = 0; i < batch.columns.size(); ++i) {
      Column& column = batch.columns[i];
      if (i == names_.size()) names_.push_back(Name(column.name));
      columns[names_[i].key] = Value(std::move(column.arrays), names_[i]);
    }
    return columns;
  }

  // A column's key, shared by the dicts of all batches, and the way to make its value.
  struct Named {
    nb::str key;
    nb::object wrap;
    bool dlpack;
  };

  Named Name(const std::string& name) const {
    nb::str key(name.data(), name.size());
    nb::object wrap = wrap_.attr("get")(key);
    const bool dlpack = dlpack_.contains(key);
    return {std::move(key), std::move(wrap), dlpack};
  }

  static nb::object Value(std::vector<Array> arrays, const Named& named) {
    const auto made = [&](size_t i) {
      return named.dlpack ? ToCapsule(std::move(arrays[i])) : ToNumpy(std::move(arrays[i]));
    };
    const nb::object& wrap = named.wrap;
    nb::object first = made(0);
    if (arrays.size() == 1) return wrap.is_none() ? first : Call(wrap, first);
    nb::object second = made(1);
    if (arrays.size() == 2) {
      return wrap.is_none() ? nb::make_tuple(first, second) : Call(wrap, first, second);
    }
    nb::object third = made(2);
    return wrap.is_none() ? nb::make_tuple(first, second, third) : Call(wrap, first, second, third);
  }

  std::shared_ptr<BatchReader> reader_;
  const nb::dict wrap_;
  const nb::set dlpack_;
  const size_t most_at_once_;
  const nb::object report_;
  const nb::object pulse_;
  const std::optional<Marks> marks_;
  size_t reported_ = 0;  // findings of this pass that were reported
  uint64_t pass_ = 0;    // passes before this one
  uint64_t position_;    // the next batch
  // The columns, in each batch's order. A deque, because wrapping with an element of it may let
  // another thread append to it.
  std::deque<Named> names_;
  std::deque<Ready> ready_;
  uint64_t bytes_read_ = 0;
  uint64_t zeros_ = 0;
  Waits waits_;
  double queue_filled_ = 0;
  std::vector<uint64_t> queue_counts_ = std::vector<uint64_t>(kQueueLevels);
  Clock::time_point next_pulse_ = Clock::now() + kPulse;  // before, there is little to report
  std::optional<Clock::time_point> answered_;             // when Next() last returned
  bool contended_ = false;                                // the last wait for the GIL was long
};

}  // namespace cachecd

#endif  // CACHECD_CORE_MODULE_READER_H_
