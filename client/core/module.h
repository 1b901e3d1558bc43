// Declarations that the parts of the Python module share. Only module*.cc use Python.

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

// Releasing the GIL is not worth it for work on fewer bytes.
constexpr size_t kWorthReleasingTheGil = 4096;

// Waits until the process ends. Before Python 3.14, if a daemon thread requests the GIL after the
// interpreter has ended, pthread_exit unwinds the thread. If this unwinds a function that must not
// throw, such as a destructor or a callback of nanobind, the process aborts. So the thread waits
// here, as in Python 3.14.
[[noreturn]] inline void Park() {
  for (;;) pause();
}

// Releases the GIL for its lifetime.
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

// Holds the bytes of an object with the buffer protocol until destruction, which needs the GIL.
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

// Returns the bytes of a path given as str, bytes or os.PathLike, in the file system's encoding.
std::string PathArgument(nb::handle path);

// The inverse of PathArgument; also for text that quotes paths.
nb::object PathObject(const std::string& path);

// Copies an integer array of one dimension. Throws a TypeError that names `what`.
std::vector<uint64_t> OffsetsArgument(nb::handle array, const char* what);

// The arguments of BatchReader, as _core.pyi describes them. Throw TypeError, ValueError,
// SchemaMismatch.
std::vector<FileSet::Input> FilesArgument(nb::sequence files);
std::vector<Stage> StagesArgument(nb::object stages);
std::optional<Mixture> MixtureArgument(nb::object mixture);
// One number for each file, or an empty vector.
std::vector<int64_t> DatasetsArgument(nb::object datasets, size_t files);
std::vector<FeatureSpec> FeaturesArgument(nb::sequence features);
Last LastArgument(const std::string& last);
std::optional<Division::Nodes> NodesArgument(std::optional<std::pair<uint64_t, uint64_t>> nodes);
// Takes a dict of ImageOptions' fields. Throws TypeError, ValueError.
ImageOptions ImageOptionsArgument(nb::handle options);

nb::dlpack::dtype DlpackType(Element element);

// Returns a NumPy array that owns the buffer.
nb::object ToNumpy(Array array);

// Returns a DLPack capsule that owns the buffer. Only one consumer can take the capsule.
nb::object ToCapsule(Array array);

// Returns a NumPy array that owns the vector's elements.
template <typename T>
nb::object ToNumpy(std::vector<T> values, bool writable);

// Translates the core's exceptions into the Python exceptions that errors.h names.
void RegisterErrors();

void BindExample(nb::module_& module);
void BindKernels(nb::module_& module);
void BindReader(nb::module_& module);

template <typename T>
nb::object ToNumpy(std::vector<T> values, bool writable) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  // NumPy needs an address, and an empty vector has none.
  void* data = owned->empty() ? static_cast<void*>(owned) : owned->data();
  const size_t size = owned->size();
  if (writable) return nb::cast(nb::ndarray<nb::numpy, T>(data, 1, &size, owner));
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, 1, &size, owner));
}

}  // namespace cachecd

#endif  // CACHECD_CORE_MODULE_H_
