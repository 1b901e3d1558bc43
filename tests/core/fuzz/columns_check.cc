#include "columns_check.h"

#include <cstring>

namespace cachecd::native {
namespace {

uint64_t Product(const std::vector<int64_t>& shape) {
  uint64_t product = 1;
  for (const int64_t extent : shape) product *= static_cast<uint64_t>(extent);
  return product;
}

uint64_t End(const Array& ends, uint64_t index) {
  return LoadU64(ends.buffer.data() + sizeof(int64_t) * index);
}

// A feature's values as they lie in a column; for bytes, one after the other.
Bytes Flat(const ReferenceFeature& feature) {
  Bytes flat;
  const auto append = [&](const void* data, size_t size) {
    const auto* from = static_cast<const uint8_t*>(data);
    flat.insert(flat.end(), from, from + size);
  };
  for (const std::string& value : feature.bytes) append(value.data(), value.size());
  append(feature.floats.data(), sizeof(uint32_t) * feature.floats.size());
  append(feature.ints.data(), sizeof(int64_t) * feature.ints.size());
  return flat;
}

// `bytes` lies at `at` of the column's values.
void ExpectBytes(const Array& values, uint64_t at, const Bytes& bytes) {
  EXPECT(bytes.empty() || std::memcmp(values.buffer.data() + at, bytes.data(), bytes.size()) == 0);
}

}  // namespace

bool Fits(const FeatureSpec& spec, const ReferenceFeature* feature) {
  const bool absent = feature == nullptr || feature->kind == Kind::kNone;
  if (absent) return spec.ragged;
  if (feature->kind != spec.kind) return false;
  if (spec.raw) {
    return feature->bytes.size() == 1 &&
           feature->bytes[0].size() == Product(spec.shape) * ElementBytes(spec.element);
  }
  return spec.ragged || feature->count() == Product(spec.shape);
}

void ExpectSound(const Column& column, const FeatureSpec& spec, uint64_t rows) {
  EXPECT(column.name == spec.name);
  EXPECT(column.arrays.size() == size_t{1} + spec.is_bytes() + spec.ragged);
  for (const Array& array : column.arrays) {
    EXPECT(Product(array.shape) * ElementBytes(array.element) <= array.buffer.capacity());
    EXPECT(reinterpret_cast<uintptr_t>(array.buffer.data()) % kAlignment == 0);
  }
  uint64_t beyond = Product(column.arrays[0].shape);
  for (size_t i = 1; i < column.arrays.size(); ++i) {
    const Array& ends = column.arrays[i];
    EXPECT(ends.element == Element::kInt64 && ends.shape.size() == 1 && ends.shape[0] >= 1);
    const auto last = static_cast<uint64_t>(ends.shape[0]) - 1;
    EXPECT(End(ends, 0) == 0 && End(ends, last) == beyond);
    for (uint64_t at = 0; at < last; ++at) EXPECT(End(ends, at) <= End(ends, at + 1));
    beyond = last;
  }
  EXPECT(beyond == (spec.ragged ? rows : rows * Product(spec.shape)));
}

void ExpectRow(const Column& column, const FeatureSpec& spec, uint64_t row,
               const ReferenceFeature* feature) {
  const Array& values = column.arrays[0];
  const uint64_t size = ElementBytes(spec.element);
  const uint64_t each = spec.ragged ? 0 : Product(spec.shape);
  if (feature == nullptr && !spec.ragged && !spec.is_bytes()) {
    ExpectBytes(values, row * each * size, Bytes(each * size, 0));
    return;
  }
  ReferenceFeature none;
  if (!spec.ragged) none.bytes.resize(each);
  const ReferenceFeature& expected = feature == nullptr ? none : *feature;

  // The row's values are [begin, end), of values of bytes or of elements.
  const Array& last = column.arrays.back();
  const uint64_t begin = spec.ragged ? End(last, row) : row * each;
  const uint64_t end = spec.ragged ? End(last, row + 1) : (row + 1) * each;
  if (!spec.raw) EXPECT(end - begin == expected.count());
  if (!spec.is_bytes()) {
    ExpectBytes(values, begin * size, Flat(expected));
    return;
  }
  const Array& offsets = column.arrays[1];
  for (uint64_t i = 0; i < expected.bytes.size(); ++i) {
    EXPECT(End(offsets, begin + i + 1) - End(offsets, begin + i) == expected.bytes[i].size());
  }
  ExpectBytes(values, End(offsets, begin), Flat(expected));
}

}  // namespace cachecd::native
