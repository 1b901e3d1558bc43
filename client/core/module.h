// What the parts of the Python module share. Only module*.cc know Python.

#ifndef CACHECD_CORE_MODULE_H_
#define CACHECD_CORE_MODULE_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "columns.h"
#include "division.h"
#include "fileset.h"
#include "image.h"

namespace cachecd {

namespace nb = nanobind;

// Work on fewer bytes than this is done before another thread could make use of the GIL.
constexpr size_t kWorthReleasingTheGil = 4096;

// Waits for the end of the process. Until Python 3.13 a daemon thread that wants the GIL when the
// interpreter has ended is unwound by pthread_exit, and that ends the process in a function that
// must not throw, such as a destructor or what nanobind calls. Parked, as of 3.14 all of them are,
// it bothers nobody.
[[noreturn]] inline void Park() {
  for (;;) pause();
}

// Releases the GIL while it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // pthread_exit: nothing else is thrown through C
      Park();
    }
  }

 private:
  PyThreadState* const state_;
};

// The bytes of an object with the buffer protocol, held until destruction (with the GIL).
class BytesArgument {
 public:
  explicit BytesArgument(nb::handle object);
  BytesArgument(const BytesArgument&) = delete;
  BytesArgument& operator=(const BytesArgument&) = delete;
  ~BytesArgument();

  ByteSpan span() const { return {static_cast<const uint8_t*>(view_.buf), size()}; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

// A path given as str, bytes or os.PathLike, in the file system's encoding.
std::string PathArgument(nb::handle path);

// The inverse, for whatever quotes paths too.
nb::object PathObject(const std::string& path);

// An integer array of one dimension, copied; TypeError names what it was for.
std::vector<uint64_t> OffsetsArgument(nb::handle array, const char* what);

// BatchReader's, as _core.pyi describes them. TypeError, ValueError, SchemaMismatch.
std::vector<FileSet::Input> FilesArgument(nb::sequence files);
std::vector<Stage> StagesArgument(nb::object stages);
std::optional<Mixture> MixtureArgument(nb::object mixture);
// A number for each of so many files, or none at all.
std::vector<int64_t> DatasetsArgument(nb::object datasets, size_t files);
std::vector<FeatureSpec> FeaturesArgument(nb::sequence features);
Last LastArgument(const std::string& last);
std::optional<Division::Nodes> NodesArgument(std::optional<std::pair<uint64_t, uint64_t>> nodes);
// A dict of ImageOptions' fields; TypeError, ValueError.
ImageOptions ImageOptionsArgument(nb::handle options);

nb::dlpack::dtype DlpackType(Element element);

// A NumPy array over the buffer, which it owns.
nb::object ToNumpy(Array array);

// A DLPack capsule of the buffer, which it owns: for one consumer, once.
nb::object ToCapsule(Array array);

// A NumPy array over the vector's elements, which it owns.
template <typename T>
nb::object ToNumpy(std::vector<T> values, bool writable);

// Makes the core's exceptions the Python ones that errors.h names.
void RegisterErrors();

void BindExample(nb::module_& module);
void BindKernels(nb::module_& module);
void BindReader(nb::module_& module);

template <typename T>
nb::object ToNumpy(std::vector<T> values, bool writable) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  // An empty vector has no address; NumPy wants one.
  void* data = owned->empty() ? static_cast<void*>(owned) : owned->data();
  const size_t size = owned->size();
  if (writable) return nb::cast(nb::ndarray<nb::numpy, T>(data, 1, &size, owner));
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, 1, &size, owner));
}

}  // namespace cachecd

#endif  // CACHECD_CORE_MODULE_H_
