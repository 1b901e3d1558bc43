// The Python classes BatchReader and Division; ends all readers at interpreter exit.

#include "module_reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

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

std::optional<Marks> MarksArgument(const nb::object& marks) {
  if (marks.is_none()) return {};
  return Marks{nb::cast<nb::dict>(marks[0]), marks[1], marks[2]};
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
             std::optional<uint64_t> processors, uint64_t augment, nb::object pulse,
             nb::object marks) {
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
                                std::move(pulse), MarksArgument(marks));
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
          nb::arg("processors") = nb::none(), nb::arg("augment") = 0, nb::arg("pulse") = nb::none(),
          nb::arg("marks") = nb::none())
      .def_prop_ro("num_records", [](const PyReader& self) { return self.reader().num_records(); })
      .def_prop_ro("num_batches", [](const PyReader& self) { return self.reader().num_batches(); })
      .def_prop_ro("corrupt", [](const PyReader& self) { return self.Findings(); })
      .def_prop_ro("num_corrupt", [](const PyReader& self) { return self.reader().num_findings(); })
      .def_prop_ro("seconds_waited", &PyReader::seconds_waited)
      .def_prop_ro("bytes_read", &PyReader::bytes_read)
      .def_prop_ro("zeros", &PyReader::zeros)
      .def_prop_ro("seconds_by_stage", &PyReader::seconds_by_stage)
      .def_prop_ro("queue_filled", &PyReader::queue_filled)
      .def_prop_ro("queue", &PyReader::queue)
      .def_prop_ro("queue_counts", &PyReader::queue_counts)
      .def_prop_ro("seconds_idle", &PyReader::seconds_idle)
      .def_prop_ro("position", &PyReader::position)
      .def("__iter__", [](nb::handle self) { return Pass(nb::borrow(self)); })
      .def("next", &PyReader::Next)
      .def("restart", &PyReader::Restart, nb::arg("start") = 0, nb::arg("seed") = nb::none(),
           nb::arg("augment") = nb::none())
      .def("take_spans", &PyReader::TakeSpans)
      .def("close", &PyReader::Close);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&CloseAll));
}

}  // namespace cachecd
