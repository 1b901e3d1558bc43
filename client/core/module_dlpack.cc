// Arrays as DLPack capsules, whose consumer frees the memory without Python. Frameworks free memory
// on their own threads, which must not wait for the GIL: after the interpreter ended, they would
// wait forever.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "module.h"

namespace cachecd {
namespace {

constexpr const char* kUnused = "dltensor";  // until a consumer renames the capsule

// The unversioned structures of DLPack, which every consumer supports
// (https://dmlc.github.io/dlpack/latest/c_api.html).
struct Device {
  int32_t type;
  int32_t id;
};
constexpr Device kCpu{1, 0};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  nb::dlpack::dtype dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// Owns the memory that a managed tensor points to.
struct Owned {
  ManagedTensor managed;
  Buffer buffer;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

void Delete(ManagedTensor* managed) { delete static_cast<Owned*>(managed->context); }

void DestroyCapsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kUnused)) return;  // taken: the consumer calls the deleter
  auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, kUnused));
  managed->deleter(managed);
}

}  // namespace

nb::object ToCapsule(Array array) {
  auto owned = std::make_unique<Owned>();
  owned->buffer = std::move(array.buffer);
  owned->shape = std::move(array.shape);
  owned->strides.resize(owned->shape.size());
  int64_t stride = 1;
  for (size_t i = owned->shape.size(); i-- > 0;) {
    owned->strides[i] = stride;
    stride *= owned->shape[i];
  }
  owned->managed = {{owned->buffer.data(), kCpu, static_cast<int32_t>(owned->shape.size()),
                     DlpackType(array.element), owned->shape.data(), owned->strides.data(), 0},
                    owned.get(),
                    Delete};
  nb::object capsule = nb::steal(PyCapsule_New(&owned->managed, kUnused, DestroyCapsule));
  if (!capsule.is_valid()) throw nb::python_error();
  owned.release();
  return capsule;
}

}  // namespace cachecd
