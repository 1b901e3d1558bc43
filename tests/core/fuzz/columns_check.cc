#include "columns_check.h"

#include <algorithm>
#include <cstring>

#include "convert.h"

namespace cachecd::native {
namespace {

uint64_t Product(const std::vector<int64_t>& shape) {
  uint64_t product = 1;
  for (const int64_t extent : shape) product *= static_cast<uint64_t>(extent);
  return product;
}

uint64_t Number(const Array& numbers, uint64_t index) {
  return LoadU64(numbers.buffer.data() + sizeof(int64_t) * index);
}

bool HasSplits(const FeatureSpec& spec) { return spec.ragged && !spec.options.pad; }

// A feature's values as a record stores them; those of bytes one after the other.
Bytes Stored(const ReferenceFeature& feature) {
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

// One by one and without special instructions. What a conversion makes of a number is checked
// against NumPy elsewhere; here, that all numbers are converted, and get where they belong.
Bytes Converted(const Bytes& stored, Element from, Element to) {
  if (from == to) return stored;
  const Conversion convert(from, to, true);
  Bytes converted(stored.size() / ElementBytes(from) * ElementBytes(to));
  for (size_t i = 0; i < stored.size() / ElementBytes(from); ++i) {
    convert(stored.data() + i * ElementBytes(from), 1, converted.data() + i * ElementBytes(to));
  }
  return converted;
}

// The class of a one_hot feature that has one value.
int64_t Class(const FeatureSpec& spec, const ReferenceFeature& feature) {
  return static_cast<int64_t>(
      LoadU64(Converted(Stored(feature), spec.element, Element::kInt64).data()));
}

// A row of numbers as it is delivered, with what it is padded with, and how many there are
// without.
Bytes Numbers(const FeatureSpec& spec, const ReferenceFeature& feature, uint64_t* count) {
  const size_t size = ElementBytes(spec.delivered);
  if (spec.options.one_hot != 0) {
    const float one = 1;
    Bytes stored(sizeof one);
    std::memcpy(stored.data(), &one, sizeof one);
    const Bytes converted = Converted(stored, Element::kFloat32, spec.delivered);
    Bytes row(spec.options.one_hot * size);
    std::copy(converted.begin(), converted.end(),
              row.begin() + Class(spec, feature) * static_cast<int64_t>(size));
    return row;
  }
  Bytes row = Converted(Stored(feature), spec.element, spec.delivered);
  if (spec.options.pad) {
    row.resize(std::min<size_t>(row.size(), *spec.options.pad * size));
    *count = row.size() / size;
    while (row.size() < *spec.options.pad * size) {
      row.insert(row.end(), spec.options.pad_value.begin(), spec.options.pad_value.end());
    }
  }
  return row;
}

// `bytes` lies at `at` of the column's values.
void ExpectBytes(const Array& values, uint64_t at, const Bytes& bytes) {
  EXPECT(bytes.empty() || std::memcmp(values.buffer.data() + at, bytes.data(), bytes.size()) == 0);
}

void ExpectLength(const Column* columns, const FeatureSpec& spec, uint64_t row, uint64_t count) {
  if (spec.options.pad) EXPECT(Number(columns[1].arrays[0], row) == count);
}

}  // namespace

ReferenceFeature Resolved(const FeatureSpec& spec, const ReferenceFeature* feature) {
  const bool has =
      feature != nullptr && (feature->kind != Kind::kNone || (spec.ragged && feature->has_value));
  if (has) return *feature;
  const std::string& fallback = spec.options.fallback;
  const auto example =
      ParseExample({reinterpret_cast<const uint8_t*>(fallback.data()), fallback.size()});
  if (!example || example->count(spec.name) == 0) return {};
  return example->at(spec.name);
}

bool Fits(const FeatureSpec& spec, const ReferenceFeature& resolved) {
  if (resolved.kind == Kind::kNone) return spec.ragged;
  if (resolved.kind != spec.kind) return false;
  if (spec.raw) {
    const bool whole = resolved.bytes.size() == 1 &&
                       resolved.bytes[0].size() == Product(spec.shape) * ElementBytes(spec.element);
    if (!whole) return false;
  } else if (!spec.ragged && resolved.count() != Product(spec.shape)) {
    return false;
  }
  if (spec.options.one_hot == 0) return true;
  const int64_t label = Class(spec, resolved);
  return label >= 0 && static_cast<uint64_t>(label) < spec.options.one_hot;
}

void ExpectSound(const Column* columns, const FeatureSpec& spec, uint64_t rows) {
  const Column& column = columns[0];
  EXPECT(column.name == spec.name);
  EXPECT(column.arrays.size() == size_t{1} + spec.is_bytes() + HasSplits(spec));
  for (const Array& array : column.arrays) {
    EXPECT(Product(array.shape) * ElementBytes(array.element) <= array.buffer.capacity());
    EXPECT(reinterpret_cast<uintptr_t>(array.buffer.data()) % kAlignment == 0);
  }
  EXPECT(column.arrays[0].element == spec.delivered);
  uint64_t beyond = Product(column.arrays[0].shape);
  for (size_t i = 1; i < column.arrays.size(); ++i) {
    const Array& ends = column.arrays[i];
    EXPECT(ends.element == Element::kInt64 && ends.shape.size() == 1 && ends.shape[0] >= 1);
    const auto last = static_cast<uint64_t>(ends.shape[0]) - 1;
    EXPECT(Number(ends, 0) == 0 && Number(ends, last) == beyond);
    for (uint64_t at = 0; at < last; ++at) EXPECT(Number(ends, at) <= Number(ends, at + 1));
    beyond = last;
  }
  if (spec.is_dense()) {
    std::vector<int64_t> shape = spec.row_shape();
    shape.insert(shape.begin(), static_cast<int64_t>(rows));
    EXPECT(column.arrays[0].shape == shape);
  } else {
    EXPECT(beyond == (spec.ragged ? rows : rows * Product(spec.shape)));
  }
  if (!spec.options.pad) return;
  EXPECT(columns[1].name == "_" + spec.name + "_length" && columns[1].arrays.size() == 1);
  const Array& lengths = columns[1].arrays[0];
  EXPECT(lengths.element == Element::kInt64);
  EXPECT(lengths.shape == std::vector<int64_t>{static_cast<int64_t>(rows)});
  EXPECT(rows * sizeof(int64_t) <= lengths.buffer.capacity());
}

void ExpectRow(const Column* columns, const FeatureSpec& spec, uint64_t row,
               const ReferenceFeature& resolved) {
  const std::vector<Array>& arrays = columns[0].arrays;
  uint64_t count = resolved.count();
  if (spec.is_dense()) {
    const Bytes numbers = Numbers(spec, resolved, &count);
    EXPECT(numbers.size() == Product(spec.row_shape()) * ElementBytes(spec.delivered));
    ExpectBytes(arrays[0], row * numbers.size(), numbers);
    ExpectLength(columns, spec, row, count);
    return;
  }
  // The row's values are [begin, end), of values of bytes or of elements.
  const Array& last = arrays.back();
  const uint64_t begin = spec.ragged ? Number(last, row) : row * Product(spec.shape);
  const uint64_t end = spec.ragged ? Number(last, row + 1) : (row + 1) * Product(spec.shape);
  EXPECT(end - begin == count);
  if (!spec.is_bytes()) {
    ExpectBytes(arrays[0], begin * ElementBytes(spec.delivered), Numbers(spec, resolved, &count));
    return;
  }
  const Array& offsets = arrays[1];
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT(Number(offsets, begin + i + 1) - Number(offsets, begin + i) == resolved.bytes[i].size());
  }
  ExpectBytes(arrays[0], Number(offsets, begin), Stored(resolved));
}

void ExpectEmptyRow(const Column* columns, const FeatureSpec& spec, uint64_t row) {
  if (!spec.is_dense() || spec.options.pad) {
    ReferenceFeature empty;
    if (!spec.ragged) empty.bytes.resize(Product(spec.shape));
    ExpectRow(columns, spec, row, empty);
    return;
  }
  const Bytes zeros(Product(spec.row_shape()) * ElementBytes(spec.delivered));
  ExpectBytes(columns[0].arrays[0], row * zeros.size(), zeros);
}

}  // namespace cachecd::native
