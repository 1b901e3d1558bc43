// BatchReader for Python: the GIL, signals, forks and the interpreter's end.

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "reader.h"

namespace cachecd {
namespace {

using Clock = std::chrono::steady_clock;

// How long a signal may go unseen while next() waits.
constexpr auto kSignalInterval = std::chrono::milliseconds(100);

class PyReader;

// Readers whose threads must end before the interpreter does. Guarded by the GIL; never destroyed,
// as objects may outlive static ones.
std::set<PyReader*>& LiveReaders() {
  static auto* readers = new std::set<PyReader*>;
  return *readers;
}

class PyReader {
 public:
  PyReader(std::vector<FileSet::Input> files, ReaderOptions options) {
    {
      const nb::gil_scoped_release release;
      reader_ = std::make_unique<BatchReader>(std::move(files), std::move(options));
    }
    LiveReaders().insert(this);
  }
  PyReader(const PyReader&) = delete;
  PyReader& operator=(const PyReader&) = delete;

  ~PyReader() {
    LiveReaders().erase(this);
    if (reader_->forked()) {
      reader_.release();  // its threads and mutexes are not ours to touch
    } else {
      Close();
    }
  }

  void Close() {
    // Threads end at their next record, but that may wait for the disk.
    const nb::gil_scoped_release release;
    reader_->Close();
  }

  nb::object Next() {
    std::optional<Batch> batch = reader_->TryNext();
    if (!batch && reader_->AtEnd()) return nb::none();
    if (!batch) batch = Wait();
    return batch ? ToDict(std::move(*batch)) : nb::none();
  }

  const BatchReader& reader() const { return *reader_; }
  double seconds_waited() const { return seconds_waited_; }

 private:
  std::optional<Batch> Wait() {
    const Clock::time_point start = Clock::now();
    std::optional<Batch> batch;
    while (!batch && !reader_->AtEnd()) {
      {
        const nb::gil_scoped_release release;
        reader_->Wait(kSignalInterval);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      batch = reader_->TryNext();
    }
    seconds_waited_ += std::chrono::duration<double>(Clock::now() - start).count();
    return batch;
  }

  static nb::object ToDict(Batch batch) {
    nb::dict columns;
    for (Column& column : batch.columns) {
      std::vector<nb::object> arrays;
      for (Array& array : column.arrays) arrays.push_back(ToNumpy(std::move(array)));
      nb::object value;
      if (arrays.size() == 1) {
        value = arrays[0];
      } else if (arrays.size() == 2) {
        value = nb::make_tuple(arrays[0], arrays[1]);
      } else {
        value = nb::make_tuple(arrays[0], arrays[1], arrays[2]);
      }
      columns[column.name.c_str()] = value;
    }
    return columns;
  }

  std::unique_ptr<BatchReader> reader_;
  double seconds_waited_ = 0;
};

std::vector<FileSet::Input> FilesArgument(nb::sequence files) {
  std::vector<FileSet::Input> inputs;
  for (nb::handle item : files) {
    const auto pair = nb::cast<nb::tuple>(item);
    if (pair.size() != 2) throw nb::type_error("files: expected (path, offsets or None)");
    FileSet::Input input{PathArgument(pair[0]), std::nullopt};
    if (!nb::object(pair[1]).is_none()) input.offsets = OffsetsArgument(pair[1], "files");
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<FeatureSpec> FeaturesArgument(nb::sequence features) {
  std::vector<FeatureSpec> specs;
  for (nb::handle item : features) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 5) {
      throw nb::type_error("features: expected (name, kind, dtype, shape, raw)");
    }
    std::vector<int64_t> shape;
    const nb::object extents = fields[3];
    if (!extents.is_none()) {
      for (nb::handle extent : nb::cast<nb::sequence>(extents)) {
        shape.push_back(nb::cast<int64_t>(extent));
      }
    }
    specs.push_back(FeatureSpec::Make(nb::cast<std::string>(nb::str(fields[0])),
                                      nb::cast<std::string>(nb::str(fields[1])),
                                      nb::cast<std::string>(nb::str(fields[2])), extents.is_none(),
                                      std::move(shape), nb::cast<bool>(fields[4])));
  }
  return specs;
}

bool ReplaceArgument(const std::string& on_corrupt) {
  if (on_corrupt == "replace") return true;
  if (on_corrupt == "raise") return false;
  throw std::invalid_argument("on_corrupt is '" + on_corrupt + "', expected 'replace' or 'raise'");
}

nb::list Findings(const PyReader& self) {
  nb::list found;
  for (const CorruptRecord& each : self.reader().findings()) {
    found.append(nb::make_tuple(PathObject(each.path), each.offset, each.why));
  }
  return found;
}

void CloseAll() {
  for (PyReader* reader : LiveReaders()) {
    if (!reader->reader().forked()) reader->Close();
  }
}

}  // namespace

void BindReader(nb::module_& module) {
  nb::class_<PyReader>(module, "BatchReader", nb::is_final())
      .def(
          "__init__",
          [](PyReader* self, nb::sequence files, nb::sequence features, uint64_t batch_size,
             uint64_t seed, bool shuffle, uint64_t rank, uint64_t world, bool drop_last,
             bool pad_tail, uint64_t start, uint64_t threads, uint64_t prefetch_bytes,
             const std::string& on_corrupt, bool ids) {
            ReaderOptions options;
            options.order = {seed, shuffle, rank, world};
            options.shape = {FeaturesArgument(features), batch_size, pad_tail, ids};
            options.drop_last = drop_last;
            options.start = start;
            options.threads = threads;
            options.prefetch_bytes = prefetch_bytes;
            options.replace = ReplaceArgument(on_corrupt);
            new (self) PyReader(FilesArgument(files), std::move(options));
          },
          nb::arg("files"), nb::arg("features"), nb::kw_only(), nb::arg("batch_size"),
          nb::arg("seed") = 0, nb::arg("shuffle") = true, nb::arg("rank") = 0, nb::arg("world") = 1,
          nb::arg("drop_last") = true, nb::arg("pad_tail") = false, nb::arg("start") = 0,
          nb::arg("threads") = 0, nb::arg("prefetch_bytes") = uint64_t{64} << 20,
          nb::arg("on_corrupt") = "replace", nb::arg("ids") = false)
      .def_prop_ro("num_records", [](const PyReader& self) { return self.reader().num_records(); })
      .def_prop_ro("num_batches", [](const PyReader& self) { return self.reader().num_batches(); })
      .def_prop_ro("corrupt", &Findings)
      .def_prop_ro("seconds_waited", &PyReader::seconds_waited)
      .def_prop_ro("bytes_read", [](const PyReader& self) { return self.reader().bytes_read(); })
      .def("next", &PyReader::Next)
      .def("close", &PyReader::Close);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&CloseAll));
}

}  // namespace cachecd
