// BatchReader for Python: handles the GIL, signals, forks and interpreter exit.

#include <cxxabi.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "module.h"
#include "reader.h"

namespace cachecd {
namespace {

// Adds its lifetime to `*total`, in seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { *total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  double* total_;
  Clock::time_point start_ = Clock::now();
};

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

// Fills of the queue are counted in this many equal parts of prefetch_bytes.
constexpr size_t kQueueParts = 32;

// Readers whose threads must end before the interpreter does. Guarded by the GIL. Never destroyed,
// because Python objects may outlive static objects.
std::set<std::shared_ptr<BatchReader>>& LiveReaders() {
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

class PyReader {
 public:
  PyReader(std::vector<FileSet::Input> files, ReaderOptions options, nb::dict wrap, nb::set dlpack,
           size_t most_at_once, nb::object report, nb::object pulse)
      : wrap_(std::move(wrap)),
        dlpack_(std::move(dlpack)),
        most_at_once_(most_at_once),
        report_(std::move(report)),
        pulse_(std::move(pulse)),
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
    seconds_waited_ = 0;
    exposed_ = {};
    gil_seconds_ = 0;
    queue_filled_ = 0;
    queue_counts_ = {};
    answered_.reset();
    reported_ = 0;
    ++pass_;
    position_ = start;
    const auto release = ReleaseUnlessEnded();
    reader_->Restart(start, seed, augment);
  }

  nb::object Next() {
    nb::object batch = Take();
    answered_ = Clock::now();
    Pulse(*answered_);
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
  double seconds_waited() const { return seconds_waited_; }
  uint64_t bytes_read() const { return bytes_read_; }
  double queue_filled() const { return queue_filled_; }
  nb::tuple queue_counts() const {
    nb::list counts;
    for (const uint64_t count : queue_counts_) counts.append(count);
    return nb::tuple(counts);
  }
  nb::dict seconds_by_stage() const {
    nb::dict seconds;
    for (size_t i = 0; i < exposed_.size(); ++i) seconds[kStageNames[i]] = exposed_[i];
    seconds["gil"] = gil_seconds_;
    return seconds;
  }
  double seconds_idle() const {
    if (!answered_) return 0;
    return std::chrono::duration<double>(Clock::now() - *answered_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // A batch as next() returns it.
  struct Ready {
    nb::object columns;
    uint64_t record_bytes = 0;
    size_t memory_bytes = 0;
    // If wrapping failed: the exception's type, and the exception itself until it is raised. Not
    // longer, because its traceback may hold an owner of the reader.
    std::string lost_to = {};
    nb::object raises = {};
  };

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
    const double filled = reader_->Delivered(next.memory_bytes);
    queue_filled_ += filled;
    ++queue_counts_[std::min(static_cast<size_t>(filled * kQueueParts), kQueueParts - 1)];
    position_ = reader_->After(position_);
    return std::move(next.columns);
  }

  void Pulse(Clock::time_point now) {
    if (now < next_pulse_ || pulse_.is_none()) return;
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
    Ready ready{{}, batch.record_bytes, batch.memory_bytes};
    try {
      ready.columns = ToDict(std::move(batch));
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
    const Stopwatch stopwatch(&seconds_waited_);
    std::optional<Batch> batch;
    bool early = contended_;
    while (!batch && ready_.empty() && !reader_->AtEnd()) {
      Clock::time_point asked;
      {
        const WithoutGil release;
        reader_->Wait(early ? std::chrono::milliseconds(0) : kSignalInterval, &exposed_);
        asked = Clock::now();
      }
      const Clock::time_point now = Clock::now();
      gil_seconds_ += std::chrono::duration<double>(now - asked).count();
      contended_ = now - asked > kContended;
      early = false;
      Pulse(now);
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
  size_t reported_ = 0;  // findings of this pass that were reported
  uint64_t pass_ = 0;    // passes before this one
  uint64_t position_;    // the next batch
  // The columns, in each batch's order. A deque, because wrapping with an element of it may let
  // another thread append to it.
  std::deque<Named> names_;
  std::deque<Ready> ready_;
  uint64_t bytes_read_ = 0;
  double seconds_waited_ = 0;
  ExposedSeconds exposed_{};  // of seconds_waited_, by what the threads did
  double gil_seconds_ = 0;    // of seconds_waited_, for the GIL
  double queue_filled_ = 0;
  std::array<uint64_t, kQueueParts> queue_counts_{};
  Clock::time_point next_pulse_;
  std::optional<Clock::time_point> answered_;  // when Next() last returned
  bool contended_ = false;  // the last wait for the GIL was long
};

// A Python iterator over one pass. Each step calls next() and nothing else.
class Pass {
 public:
  explicit Pass(nb::object reader) : reader_(std::move(reader)), pass_(self().pass()) {}

  nb::object Next() {
    if (self().pass() != pass_) throw UsageError("another pass of the reader has begun");
    nb::object batch = self().Next();
    if (batch.is_none()) throw nb::stop_iteration();
    return batch;
  }

 private:
  PyReader& self() const { return *nb::inst_ptr<PyReader>(reader_); }

  const nb::object reader_;
  const uint64_t pass_;
};

nb::object RowsOf(const Division& division, uint64_t rank) {
  std::vector<int64_t> rows(division.steps());
  for (uint64_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<int64_t>(division.Batch(i, rank).there);
  }
  return ToNumpy(std::move(rows), true);
}

bool ReplaceArgument(const std::string& on_corrupt) {
  if (on_corrupt == "replace") return true;
  if (on_corrupt == "raise") return false;
  throw std::invalid_argument("on_corrupt is '" + on_corrupt + "', expected 'replace' or 'raise'");
}

void CloseAll() {
  // A copy, because while one reader is closed without the GIL, another may be destroyed.
  const std::set<std::shared_ptr<BatchReader>> readers = LiveReaders();
  for (const std::shared_ptr<BatchReader>& reader : readers) {
    if (reader->forked()) continue;
    const WithoutGil release;
    reader->Close();
  }
}

}  // namespace

void BindReader(nb::module_& module) {
  nb::class_<Division>(module, "Division", nb::is_final())
      .def(
          "__init__",
          [](Division* self, uint64_t records, uint64_t batch_size, uint64_t world,
             const std::string& last, std::optional<std::pair<uint64_t, uint64_t>> nodes) {
            if (batch_size == 0) throw std::invalid_argument("batch_size 0, expected >= 1");
            if (world == 0) throw std::invalid_argument("world 0, expected >= 1");
            new (self)
                Division(records, batch_size, world, LastArgument(last), NodesArgument(nodes));
          },
          nb::arg("records"), nb::arg("batch_size"), nb::arg("world"), nb::arg("last"),
          nb::arg("nodes") = nb::none())
      .def_prop_ro("records", &Division::records)
      .def_prop_ro("steps", &Division::steps)
      .def_prop_ro("is_full", &Division::is_full)
      .def("begin", &Division::Begin, nb::arg("batch"), nb::arg("rank"))
      .def("rows", &RowsOf, nb::arg("rank"));
  nb::class_<Pass>(module, "Pass", nb::is_final())
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &Pass::Next);
  nb::class_<PyReader>(module, "BatchReader", nb::is_final())
      .def(
          "__init__",
          [](PyReader* self, nb::sequence files, nb::sequence features, uint64_t batch_size,
             uint64_t seed, bool shuffle, uint64_t rank, uint64_t world, const std::string& last,
             uint64_t start, uint64_t every, uint64_t threads, uint64_t prefetch_bytes,
             const std::string& on_corrupt, bool ids, uint64_t window, nb::dict wrap,
             nb::set dlpack, bool one_by_one, nb::object report, nb::object stages,
             nb::object mixture, nb::object datasets,
             std::optional<std::pair<uint64_t, uint64_t>> nodes,
             std::optional<std::pair<uint64_t, uint64_t>> totals, std::optional<uint64_t> memory,
             std::optional<uint64_t> processors, uint64_t augment) {
            ReaderOptions options;
            options.order = {seed, shuffle, rank, world, window};
            options.order.stages = StagesArgument(stages);
            options.order.mixture = MixtureArgument(mixture);
            options.shape = {FeaturesArgument(features),
                             batch_size,
                             false,
                             ids,
                             DatasetsArgument(std::move(datasets), nb::len(files)),
                             augment};
            options.last = LastArgument(last);
            options.nodes = NodesArgument(nodes);
            if (totals) options.totals = {totals->first, totals->second};
            options.start = start;
            options.every = every;
            options.threads = threads;
            options.memory = memory.value_or(options.memory);
            options.processors = processors.value_or(options.processors);
            options.prefetch_bytes = prefetch_bytes;
            options.replace = ReplaceArgument(on_corrupt);
            new (self) PyReader(FilesArgument(files), std::move(options), std::move(wrap),
                                std::move(dlpack), one_by_one ? 1 : kMostAtOnce, std::move(report),
                                std::move(pulse));
          },
          nb::arg("files"), nb::arg("features"), nb::kw_only(), nb::arg("batch_size"),
          nb::arg("seed") = 0, nb::arg("shuffle") = true, nb::arg("rank") = 0, nb::arg("world") = 1,
          nb::arg("last") = "drop", nb::arg("start") = 0, nb::arg("every") = 1,
          nb::arg("threads") = 0, nb::arg("prefetch_bytes") = uint64_t{64} << 20,
          nb::arg("on_corrupt") = "replace", nb::arg("ids") = false, nb::arg("window") = 0,
          nb::arg("wrap") = nb::dict(), nb::arg("dlpack") = nb::set(),
          nb::arg("one_by_one") = false, nb::arg("report") = nb::none(),
          nb::arg("stages") = nb::none(), nb::arg("mixture") = nb::none(),
          nb::arg("datasets") = nb::none(), nb::arg("nodes") = nb::none(),
          nb::arg("totals") = nb::none(), nb::arg("memory") = nb::none(),
          nb::arg("processors") = nb::none(), nb::arg("augment") = 0,
          nb::arg("pulse") = nb::none())
      .def_prop_ro("num_records", [](const PyReader& self) { return self.reader().num_records(); })
      .def_prop_ro("num_batches", [](const PyReader& self) { return self.reader().num_batches(); })
      .def_prop_ro("corrupt", [](const PyReader& self) { return self.Findings(); })
      .def_prop_ro("num_corrupt", [](const PyReader& self) { return self.reader().num_findings(); })
      .def_prop_ro("seconds_waited", &PyReader::seconds_waited)
      .def_prop_ro("bytes_read", &PyReader::bytes_read)
      .def_prop_ro("seconds_by_stage", &PyReader::seconds_by_stage)
      .def_prop_ro("queue_filled", &PyReader::queue_filled)
      .def_prop_ro("queue_counts", &PyReader::queue_counts)
      .def_prop_ro("seconds_idle", &PyReader::seconds_idle)
      .def_prop_ro("position", &PyReader::position)
      .def("__iter__", [](nb::handle self) { return Pass(nb::borrow(self)); })
      .def("next", &PyReader::Next)
      .def("restart", &PyReader::Restart, nb::arg("start") = 0, nb::arg("seed") = nb::none(),
           nb::arg("augment") = nb::none())
      .def("close", &PyReader::Close);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&CloseAll));
}

}  // namespace cachecd
