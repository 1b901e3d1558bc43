#include "columns.h"

#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "errors.h"

namespace cachecd {
namespace {

struct Dtype {
  const char* name;
  Element element;
  size_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"bool", Element::kBool, 1},       {"int8", Element::kInt8, 1},
    {"uint8", Element::kUint8, 1},     {"int16", Element::kInt16, 2},
    {"uint16", Element::kUint16, 2},   {"int32", Element::kInt32, 4},
    {"uint32", Element::kUint32, 4},   {"int64", Element::kInt64, 8},
    {"uint64", Element::kUint64, 8},   {"float16", Element::kFloat16, 2},
    {"float32", Element::kFloat32, 4}, {"float64", Element::kFloat64, 8},
    {"bfloat16", Element::kUint16, 2},
};

[[noreturn]] void Refuse(const std::string& name, const std::string& why) {
  throw SchemaMismatch("feature '" + name + "': " + why);
}

std::string Count(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

void PutEnd(Buffer* ends, uint64_t index, uint64_t end) {
  ends->Grow(index * sizeof(int64_t), (index + 1) * sizeof(int64_t));
  const int64_t value = static_cast<int64_t>(end);
  std::memcpy(ends->data() + index * sizeof(int64_t), &value, sizeof value);
}

}  // namespace

size_t ElementBytes(Element element) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.element == element) return dtype.bytes;
  }
  return 0;
}

size_t Multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > INT64_MAX) throw std::bad_alloc();
  return product;
}

uint64_t FeatureSpec::elements() const {
  uint64_t product = 1;
  for (const int64_t extent : shape) product = Multiply(product, static_cast<uint64_t>(extent));
  return product;
}

FeatureSpec FeatureSpec::Make(std::string name, const std::string& kind, const std::string& dtype,
                              bool ragged, std::vector<int64_t> shape, bool raw) {
  FeatureSpec spec;
  for (const Kind known : {Kind::kBytes, Kind::kFloat, Kind::kInt64}) {
    if (kind == KindName(known)) spec.kind = known;
  }
  if (spec.kind == Kind::kNone) {
    Refuse(name, "kind '" + kind + "', expected 'bytes', 'float' or 'int64'");
  }
  for (const int64_t extent : shape) {
    if (extent < 0) Refuse(name, "a negative extent in its shape");
  }
  const char* expected = spec.kind == Kind::kFloat   ? "float32"
                         : spec.kind == Kind::kInt64 ? "int64"
                                                     : "bytes";
  if (raw) {
    const Dtype* found = nullptr;
    for (const Dtype& known : kDtypes) {
      if (dtype == known.name) found = &known;
    }
    if (found == nullptr) Refuse(name, "unknown dtype '" + dtype + "' of a raw array");
    if (spec.kind != Kind::kBytes)
      Refuse(name, "a raw array is of kind 'bytes', not '" + kind + "'");
    if (ragged) Refuse(name, "a raw array needs a shape");
    spec.element = found->element;
  } else {
    if (dtype != expected) {
      Refuse(name,
             "a list of kind '" + kind + "' has dtype '" + expected + "', not '" + dtype + "'");
    }
    spec.element = spec.kind == Kind::kFloat   ? Element::kFloat32
                   : spec.kind == Kind::kInt64 ? Element::kInt64
                                               : Element::kUint8;
  }
  spec.name = std::move(name);
  spec.raw = raw;
  spec.ragged = ragged;
  spec.shape = std::move(shape);
  return spec;
}

ColumnBuilder::ColumnBuilder(const FeatureSpec& spec, uint64_t rows, size_t hint, BufferPool* pool)
    : spec_(spec),
      rows_(rows),
      row_elements_(spec.ragged ? 0 : spec.elements()),
      element_bytes_(ElementBytes(spec.element)) {
  const bool dense = !spec.ragged && !spec.is_bytes();
  data_ = pool->Take(dense ? Multiply(Multiply(rows, row_elements_), element_bytes_) : hint);
  if (spec.is_bytes()) {
    const uint64_t values = spec.ragged ? rows : Multiply(rows, row_elements_);
    offsets_ = pool->Take(Multiply(values + 1, sizeof(int64_t)));
    PutEnd(&offsets_, 0, 0);
  }
  if (spec.ragged) {
    splits_ = pool->Take(Multiply(rows + 1, sizeof(int64_t)));
    PutEnd(&splits_, 0, 0);
  }
}

void ColumnBuilder::Misfit(const std::string& found, const std::string& expected) const {
  Refuse(spec_.name, "the record has " + found + ", the schema says " + expected);
}

void ColumnBuilder::Append(const FeatureView& feature, std::vector<LargeValue>* later) {
  // A writer that has nothing to list may leave the feature out, or its kind unset.
  if (feature.kind == Kind::kNone && !spec_.ragged)
    Misfit("no such feature", std::string("a ") + KindName(spec_.kind) + " list");
  if (feature.kind != Kind::kNone && feature.kind != spec_.kind) {
    Misfit(std::string("a ") + KindName(feature.kind) + " list",
           std::string("a ") + KindName(spec_.kind) + " list");
  }
  if (feature.kind == Kind::kNone) {
    // An empty row.
  } else if (spec_.raw) {
    AppendRaw(feature, later);
  } else if (spec_.kind == Kind::kBytes) {
    AppendBytes(feature, later);
  } else {
    AppendNumbers(feature);
  }
  EndRow();
}

void ColumnBuilder::PutBytes(ByteSpan value, std::vector<LargeValue>* later) {
  if (later != nullptr && value.size >= kLargeValue) {
    later->push_back({this, used_, value});
  } else if (value.size != 0) {
    std::memcpy(data_.data() + used_, value.data, value.size);
  }
  used_ += value.size;
}

void ColumnBuilder::Rollback(const Mark& mark) {
  row_ = mark.row;
  values_ = mark.values;
  used_ = mark.used;
}

void ColumnBuilder::AppendRaw(const FeatureView& feature, std::vector<LargeValue>* later) {
  const size_t row_bytes = row_elements_ * element_bytes_;
  uint64_t count = 0;
  ByteSpan value;
  ForEachBytes(feature, [&](ByteSpan bytes) {
    value = bytes;
    ++count;
  });
  if (count != 1) Misfit(Count(count, "value"), "1 that holds an array");
  if (value.size != row_bytes) {
    Misfit("an array of " + Count(value.size, "byte"), std::to_string(row_bytes));
  }
  PutBytes(value, later);
}

void ColumnBuilder::AppendNumbers(const FeatureView& feature) {
  // A row of a ragged column is as long as it is: count first, so that the buffer is large enough.
  // A row of a dense one is written as far as it may go, and then compared.
  const uint64_t room = spec_.ragged ? CountValues(feature) : row_elements_;
  if (spec_.ragged) data_.Grow(used_, used_ + room * element_bytes_);
  uint8_t* to = data_.data() + used_;
  const uint64_t count = spec_.kind == Kind::kInt64
                             ? ReadInts(feature, reinterpret_cast<int64_t*>(to), room)
                             : ReadFloats(feature, reinterpret_cast<float*>(to), room);
  if (count != room) Misfit(Count(count, "value"), std::to_string(room));
  values_ += count;
  used_ += count * element_bytes_;
}

void ColumnBuilder::AppendBytes(const FeatureView& feature, std::vector<LargeValue>* later) {
  const uint64_t before = values_;
  ForEachBytes(feature, [&](ByteSpan value) {
    if (!spec_.ragged && values_ - before == row_elements_) {
      Misfit(Count(CountValues(feature), "value"), std::to_string(row_elements_));
    }
    data_.Grow(used_, used_ + value.size);
    PutBytes(value, later);
    EndValue();
  });
  if (!spec_.ragged && values_ - before != row_elements_) {
    Misfit(Count(values_ - before, "value"), std::to_string(row_elements_));
  }
}

void ColumnBuilder::EndValue() { PutEnd(&offsets_, ++values_, used_); }

void ColumnBuilder::EndRow() {
  ++row_;
  if (spec_.ragged) PutEnd(&splits_, row_, values_);
}

void ColumnBuilder::AppendEmpty() {
  if (!spec_.ragged && spec_.is_bytes()) {
    for (uint64_t i = 0; i < row_elements_; ++i) EndValue();
  } else if (!spec_.ragged) {
    const size_t row_bytes = row_elements_ * element_bytes_;
    if (row_bytes != 0) std::memset(data_.data() + used_, 0, row_bytes);
    used_ += row_bytes;
  }
  EndRow();
}

Column ColumnBuilder::Finish() {
  Column column{spec_.name, {}};
  const bool dense = !spec_.ragged && !spec_.is_bytes();
  std::vector<int64_t> shape;
  if (dense) {
    shape = spec_.shape;
    shape.insert(shape.begin(), static_cast<int64_t>(rows_));
  } else {
    shape = {static_cast<int64_t>(used_ / element_bytes_)};
  }
  column.arrays.push_back({std::move(data_), spec_.element, std::move(shape)});
  if (spec_.is_bytes()) {
    column.arrays.push_back(
        {std::move(offsets_), Element::kInt64, {static_cast<int64_t>(values_ + 1)}});
  }
  if (spec_.ragged) {
    column.arrays.push_back(
        {std::move(splits_), Element::kInt64, {static_cast<int64_t>(rows_ + 1)}});
  }
  return column;
}

}  // namespace cachecd
