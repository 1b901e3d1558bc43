// The Python module cachecd_client._core. _core.pyi describes its interface.

#include "module.h"

#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>

#include "crc32c.h"
#include "draws.h"
#include "errors.h"
#include "permutation.h"
#include "sidecar.h"
#include "tfrecord.h"
#include "writer.h"

namespace cachecd {
namespace {

uint32_t PyCrc32c(nb::object data, uint32_t crc) {
  const BytesArgument bytes(data);
  if (bytes.size() < kWorthReleasingTheGil) return Crc32c(bytes.span().data, bytes.size(), crc);
  const WithoutGil release;
  return Crc32c(bytes.span().data, bytes.size(), crc);
}

uint64_t PermutationItem(const Permutation& self, nb::object position) {
  const Py_ssize_t index = PyNumber_AsSsize_t(position.ptr(), PyExc_IndexError);
  if (index == -1 && PyErr_Occurred()) throw nb::python_error();
  if (index < 0 || static_cast<uint64_t>(index) >= self.size()) {
    throw std::out_of_range("position " + std::to_string(index) + " of a permutation of " +
                            std::to_string(self.size()));
  }
  return self[static_cast<uint64_t>(index)];
}

nb::object PermutationTake(const Permutation& self, uint64_t start, uint64_t count) {
  if (start > self.size() || count > self.size() - start) {
    throw std::out_of_range(std::to_string(count) + " positions from " + std::to_string(start) +
                            " of a permutation of " + std::to_string(self.size()));
  }
  std::vector<uint64_t> images(count);
  {
    const WithoutGil release;
    for (uint64_t i = 0; i < count; ++i) images[i] = self[start + i];
  }
  return ToNumpy(std::move(images), true);
}

std::vector<uint64_t> PyDrawn(std::vector<uint64_t> bounds, uint64_t key, uint64_t positions) {
  const WithoutGil release;
  return Draws(std::move(bounds), key, positions).At(positions).before;
}

uint64_t PyDrawsUntil(std::vector<uint64_t> bounds, uint64_t key, std::vector<uint64_t> records) {
  const WithoutGil release;
  return Draws::Length(std::move(bounds), key, records);
}

// Returns text whose bytes that are not UTF-8 are shown as escapes.
nb::object Text(const std::string& text) {
  nb::object shown = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!shown.is_valid()) throw nb::python_error();
  return shown;
}

// A ShardWriter that refuses concurrent calls, which are possible because it releases the GIL.
class PyWriter {
 private:
  template <typename Step>
  auto Exclusively(Step step) {
    if (busy_) throw UsageError("this writer is in use in another thread");
    const Busy busy(&busy_);
    const WithoutGil release;
    return step();
  }

  // Sets and clears the flag, both with the GIL held.
  class Busy {
   public:
    explicit Busy(bool* flag) : flag_(flag) { *flag_ = true; }
    ~Busy() { *flag_ = false; }

   private:
    bool* flag_;
  };

 public:
  PyWriter(nb::object path, uint64_t capacity, uint64_t meta_bytes) {
    const std::string name = PathArgument(path);
    const WithoutGil release;
    writer_.emplace(name, capacity, meta_bytes);
  }

  const ShardWriter& writer() const { return *writer_; }

  void Describe(uint64_t unit, nb::bytes key, uint64_t begin, nb::bytes etag) {
    if (busy_) throw UsageError("this writer is in use in another thread");
    writer_->Describe({unit, begin, std::string(key.c_str(), key.size()),
                       std::string(etag.c_str(), etag.size())});
  }

  bool Append(nb::object record, uint64_t unit, uint32_t ordinal) {
    const BytesArgument bytes(record);
    return Exclusively([&] { return writer_->Append(bytes.span(), unit, ordinal); });
  }

  nb::tuple AppendFrames(nb::object frames, uint64_t unit, uint32_t ordinal, nb::object name,
                         uint64_t base, nb::object schema) {
    const BytesArgument bytes(frames);
    const std::string path = PathArgument(name);
    std::optional<RecordCheck> check;
    if (!schema.is_none()) check.emplace(FeaturesArgument(nb::cast<nb::sequence>(schema)));
    const ShardWriter::Carried carried = Exclusively([&] {
      return writer_->AppendFrames(bytes.span(), unit, ordinal, path, base,
                                   check ? &*check : nullptr);
    });
    nb::list misfits;
    for (const auto& [ordinal, misfit, more] : carried.misfits) {
      misfits.append(nb::make_tuple(ordinal, Text(misfit.why), Text(misfit.name),
                                    KindName(misfit.kind), misfit.count, more));
    }
    return nb::make_tuple(carried.records, carried.consumed, carried.full, carried.passed, misfits);
  }

  nb::tuple Finish(const std::string& meta) {
    const ShardWriter::Sealed sealed = Exclusively([&] { return writer_->Finish(meta); });
    digest_ = sealed.digest;
    return nb::make_tuple(sealed.data_bytes, sealed.sidecar_bytes);
  }

  uint64_t digest() const { return digest_; }

  void Abort() {
    Exclusively([&] { writer_->Abort(); });
  }

 private:
  std::optional<ShardWriter> writer_;
  uint64_t digest_ = 0;
  bool busy_ = false;
};

// A sidecar's contents, with `meta` as a Python str.
struct PySidecar {
  SidecarContents contents;
  nb::object meta;
};

nb::object MetaText(const std::string& path, const std::string& meta) {
  nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(meta.data(), static_cast<Py_ssize_t>(meta.size()), nullptr));
  if (!text.is_valid()) {
    PyErr_Clear();
    throw CorruptSidecar(path, "its meta is not UTF-8");
  }
  return text;
}

PySidecar PyReadSidecar(nb::object path) {
  const std::string name = PathArgument(path);
  PySidecar sidecar;
  {
    const WithoutGil release;
    sidecar.contents = ReadSidecar(name);
  }
  sidecar.meta = MetaText(name, sidecar.contents.meta);
  return sidecar;
}

// Returns the unit number of each record.
nb::object UnitNumbers(const PySidecar& self) {
  std::vector<uint64_t> numbers;
  numbers.reserve(self.contents.indices.size());
  for (const uint32_t index : self.contents.indices) {
    numbers.push_back(self.contents.units[index].number);
  }
  return ToNumpy(std::move(numbers), false);
}

nb::list UnitTable(const PySidecar& self) {
  nb::list table;
  for (const SidecarUnit& unit : self.contents.units) {
    table.append(nb::make_tuple(unit.number, nb::bytes(unit.key.data(), unit.key.size()),
                                unit.begin, nb::bytes(unit.etag.data(), unit.etag.size())));
  }
  return table;
}

nb::tuple PyReadSidecarHead(nb::object path) {
  const std::string name = PathArgument(path);
  SidecarHead head;
  {
    const WithoutGil release;
    head = ReadSidecarHead(name);
  }
  return nb::make_tuple(MetaText(name, head.meta), head.header.records, head.header.data_bytes,
                        head.header.digest, head.header.units);
}

uint64_t PyWriteSidecar(nb::object path, const std::string& meta, uint64_t data_bytes,
                        nb::object offsets) {
  SidecarContents contents;
  contents.meta = meta;
  contents.data_bytes = data_bytes;
  contents.offsets = OffsetsArgument(offsets, "offsets");
  contents.indices.resize(contents.offsets.size());
  if (!contents.offsets.empty()) contents.units.resize(1);
  for (size_t i = 0; i < contents.offsets.size(); ++i) {
    contents.ordinals.push_back(static_cast<uint32_t>(i));
  }
  const std::string name = PathArgument(path);
  const WithoutGil release;
  return WriteSidecar(name, contents);
}

nb::object PyScan(nb::object path, bool verify) {
  const std::string name = PathArgument(path);
  std::vector<uint64_t> offsets;
  {
    const WithoutGil release;
    ScanFile(name, verify, &offsets);
  }
  return ToNumpy(std::move(offsets), true);
}

nb::object PyCountRecords(nb::sequence files, std::optional<std::pair<uint64_t, uint64_t>> of) {
  std::vector<FileSet::Input> inputs = FilesArgument(files);
  std::vector<uint64_t> records;
  {
    const WithoutGil release;
    // With a window of one byte, FileSet opens a file only if it must.
    std::optional<FileSet::Totals> totals;
    if (of) totals = {of->first, of->second};
    const FileSet set(std::move(inputs), /*tolerant=*/true, /*window=*/1, totals);
    for (const FileExtent& extent : set.extents()) records.push_back(extent.records);
  }
  return ToNumpy(std::move(records), true);
}

nb::bytes PyReadRecord(nb::object path, uint64_t offset) {
  const std::string name = PathArgument(path);
  std::string payload;
  {
    const WithoutGil release;
    payload = ReadRecord(name, offset);
  }
  return nb::bytes(payload.data(), payload.size());
}

void BindFiles(nb::module_& module) {
  nb::class_<PyWriter>(module, "ShardWriter", nb::is_final())
      .def(nb::init<nb::object, uint64_t, uint64_t>(), nb::arg("path"), nb::arg("capacity") = 0,
           nb::arg("meta_bytes") = ShardWriter::kMetaBytes)
      .def_prop_ro("num_records", [](const PyWriter& self) { return self.writer().num_records(); })
      .def_prop_ro("num_bytes", [](const PyWriter& self) { return self.writer().num_bytes(); })
      .def_prop_ro("sidecar_bytes",
                   [](const PyWriter& self) { return self.writer().sidecar_bytes(); })
      .def_prop_ro("digest", &PyWriter::digest)
      .def("describe", &PyWriter::Describe, nb::arg("unit"), nb::arg("key"), nb::arg("begin"),
           nb::arg("etag"))
      .def("append", &PyWriter::Append, nb::arg("record"), nb::arg("unit") = 0,
           nb::arg("ordinal") = 0)
      .def("append_frames", &PyWriter::AppendFrames, nb::arg("frames"), nb::arg("unit") = 0,
           nb::arg("ordinal") = 0, nb::arg("name") = "", nb::arg("base") = 0,
           nb::arg("schema") = nb::none())
      .def("finish", &PyWriter::Finish, nb::arg("meta"))
      .def("abort", &PyWriter::Abort);

  nb::class_<PySidecar>(module, "Sidecar", nb::is_final())
      .def_static("read", &PyReadSidecar, nb::arg("path"))
      .def_prop_ro("meta", [](const PySidecar& self) { return self.meta; })
      .def_prop_ro("data_bytes", [](const PySidecar& self) { return self.contents.data_bytes; })
      .def_prop_ro("offsets",
                   [](const PySidecar& self) { return ToNumpy(self.contents.offsets, false); })
      .def_prop_ro("digest", [](const PySidecar& self) { return SidecarDigest(self.contents); })
      .def_prop_ro("units", &UnitNumbers)
      .def_prop_ro("table", &UnitTable)
      .def_prop_ro("indices",
                   [](const PySidecar& self) { return ToNumpy(self.contents.indices, false); })
      .def_prop_ro("ordinals",
                   [](const PySidecar& self) { return ToNumpy(self.contents.ordinals, false); })
      .def("__len__", [](const PySidecar& self) { return self.contents.offsets.size(); });

  module.def("read_sidecar_head", &PyReadSidecarHead, nb::arg("path"));
  module.def("write_sidecar", &PyWriteSidecar, nb::arg("path"), nb::arg("meta"),
             nb::arg("data_bytes"), nb::arg("offsets"));
  module.def("scan", &PyScan, nb::arg("path"), nb::arg("verify") = false);
  module.def("count_records", &PyCountRecords, nb::arg("files"), nb::arg("totals") = nb::none());
  module.def("read_record", &PyReadRecord, nb::arg("path"), nb::arg("offset"));
}

}  // namespace
}  // namespace cachecd

NB_MODULE(_core, module) {
  using namespace cachecd;
  // A loader that lives until interpreter exit is not a leak; atexit ends its threads.
  nb::set_leak_warnings(false);
  RegisterErrors();

  module.attr("SIDECAR_VERSION") = kSidecarVersion;
  module.attr("PERMUTATION_VERSION") = kPermutationVersion;

  module.def("crc32c", &PyCrc32c, nb::arg("data"), nb::arg("crc") = 0);
  module.def(
      "masked_crc32c", [](nb::object data) { return MaskCrc(PyCrc32c(data, 0)); }, nb::arg("data"));

  nb::class_<Permutation>(module, "Permutation", nb::is_final())
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("n"), nb::arg("key"))
      .def("__len__", &Permutation::size)
      .def("__getitem__", &PermutationItem)
      .def("take", &PermutationTake, nb::arg("start"), nb::arg("count"));

  module.def("drawn", &PyDrawn, nb::arg("bounds"), nb::arg("key"), nb::arg("positions"));
  module.def("draws_until", &PyDrawsUntil, nb::arg("bounds"), nb::arg("key"), nb::arg("records"));

  BindFiles(module);
  BindExample(module);
  BindKernels(module);
  BindReader(module);
}
