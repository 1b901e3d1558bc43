#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "errors.h"
#include "image.h"
#include "module.h"

namespace cachecd {
namespace {

// The core's messages may quote paths, which need not be UTF-8.
void Raise(PyObject* type, const char* message) {
  PyErr_SetObject(type, PathObject(message).ptr());
}

void RaiseOurs(const char* name, nb::tuple arguments) {
  const nb::object type = nb::module_::import_("cachecd_client.errors").attr(name);
  PyErr_SetObject(type.ptr(), arguments.ptr());
}

void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const IoError& error) {
    // OSError itself selects the subclass, such as FileNotFoundError.
    const nb::object arguments =
        nb::make_tuple(error.code, std::strerror(error.code), PathObject(error.path));
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const CorruptRecord& error) {
    RaiseOurs("CorruptRecordError",
              nb::make_tuple(PathObject(error.path), error.offset, PathObject(error.why)));
  } catch (const CorruptSidecar& error) {
    RaiseOurs("CorruptSidecarError", nb::make_tuple(PathObject(error.path), PathObject(error.why)));
  } catch (const SchemaMismatch& error) {
    RaiseOurs("SchemaError", nb::make_tuple(PathObject(error.what())));
  } catch (const DamagedImage& error) {
    Raise(PyExc_ValueError, error.what());
  } catch (const MalformedExample& error) {
    Raise(PyExc_ValueError, error.what());
  } catch (const std::invalid_argument& error) {
    Raise(PyExc_ValueError, error.what());
  } catch (const UsageError& error) {
    Raise(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

BytesArgument::BytesArgument(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
}

BytesArgument::~BytesArgument() { PyBuffer_Release(&view_); }

std::string PathArgument(nb::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw nb::python_error();
  const nb::object owner = nb::steal(bytes);
  return {PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes))};
}

nb::object PathObject(const std::string& path) {
  return nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

std::vector<uint64_t> OffsetsArgument(nb::handle array, const char* what) {
  using Offsets = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  Offsets offsets;
  if (!nb::try_cast(array, offsets, false)) {
    const std::string message = std::string(what) + ": expected a uint64 array of one dimension";
    throw nb::type_error(message.c_str());
  }
  return std::vector<uint64_t>(offsets.data(), offsets.data() + offsets.size());
}

nb::dlpack::dtype DlpackType(Element element) {
  switch (element) {
    case Element::kBool:
      return nb::dtype<bool>();
    case Element::kInt8:
      return nb::dtype<int8_t>();
    case Element::kUint8:
      return nb::dtype<uint8_t>();
    case Element::kInt16:
      return nb::dtype<int16_t>();
    case Element::kUint16:
    case Element::kBfloat16:
      return nb::dtype<uint16_t>();
    case Element::kInt32:
      return nb::dtype<int32_t>();
    case Element::kUint32:
      return nb::dtype<uint32_t>();
    case Element::kInt64:
      return nb::dtype<int64_t>();
    case Element::kUint64:
      return nb::dtype<uint64_t>();
    case Element::kFloat16:
      return {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case Element::kFloat32:
      return nb::dtype<float>();
    case Element::kFloat64:
      return nb::dtype<double>();
  }
  return {};
}

nb::object ToNumpy(Array array) {
  const std::vector<size_t> shape(array.shape.begin(), array.shape.end());
  const nb::dlpack::dtype dtype = DlpackType(array.element);
  auto* buffer = new Buffer(std::move(array.buffer));
  nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy>(buffer->data(), shape.size(), shape.data(), owner, nullptr, dtype));
}

void RegisterErrors() { nb::register_exception_translator(Translate); }

}  // namespace cachecd
