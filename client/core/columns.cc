#include "columns.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.h"
#include "numbers.h"

namespace cachecd {
namespace {

// A ragged list reserves room for at least this many elements at a time; its buffer doubles.
constexpr size_t kRaggedStep = 64;

std::string Count(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

void PutNumber(Buffer* numbers, uint64_t index, uint64_t value) {
  numbers->Grow(index * sizeof(int64_t), (index + 1) * sizeof(int64_t));
  const int64_t number = static_cast<int64_t>(value);
  std::memcpy(numbers->data() + index * sizeof(int64_t), &number, sizeof number);
}

FeatureView FindFallback(const FeatureSpec& spec) {
  FeatureView found;
  const std::string& example = spec.options.fallback;
  const ByteSpan record{reinterpret_cast<const uint8_t*>(example.data()), example.size()};
  ForEachFeature(record, [&](std::string_view name, ByteSpan feature) {
    if (name == spec.name) found = ParseFeature(feature, record.data);
  });
  return found;
}

[[noreturn]] void Refuse(const FeatureSpec& spec, const std::string& found,
                         const std::string& expected) {
  RefuseFeature(spec.name, "the record has " + found + ", the schema says " + expected);
}

std::string ListOf(Kind kind) { return std::string("a ") + KindName(kind) + " list"; }

// `remedy`: of a missing feature.
void CheckKind(const FeatureSpec& spec, const FeatureView& feature, const char* remedy) {
  if (feature.kind == spec.kind) return;
  if (feature.kind != Kind::kNone) Refuse(spec, ListOf(feature.kind), ListOf(spec.kind));
  if (!spec.ragged) Refuse(spec, "no such feature", ListOf(spec.kind) + remedy);
}

ByteSpan OneValue(const FeatureSpec& spec, const FeatureView& feature, const char* expected) {
  uint64_t count = 0;
  ByteSpan value;
  ForEachBytes(feature, [&](ByteSpan bytes) {
    value = bytes;
    ++count;
  });
  if (count != 1) Refuse(spec, Count(count, "value"), expected);
  return value;
}

ByteSpan RawValue(const FeatureSpec& spec, const FeatureView& feature) {
  const size_t element = ElementBytes(spec.element);
  const ByteSpan value = OneValue(spec, feature, "1 that holds an array");
  if (spec.ragged && value.size % element != 0) {
    Refuse(spec, "an array of " + Count(value.size, "byte"),
           "a multiple of " + std::to_string(element));
  }
  if (const size_t expected = Multiply(Multiply(spec.shape), element);
      !spec.ragged && value.size != expected) {
    Refuse(spec, "an array of " + Count(value.size, "byte"), std::to_string(expected));
  }
  return value;
}

// Throws what a ColumnBuilder without options throws for the feature.
void CheckFeature(const FeatureSpec& spec, const FeatureView& feature) {
  if (feature.kind == Kind::kNone && spec.options.optional) return;
  CheckKind(spec, feature, "");
  if (feature.kind != Kind::kNone && spec.raw) {
    RawValue(spec, feature);
  } else if (const uint64_t count = CountValues(feature);
             !spec.ragged && count != Multiply(spec.shape)) {
    Refuse(spec, Count(count, "value"), std::to_string(Multiply(spec.shape)));
  }
}

bool AreEqual(ByteSpan a, ByteSpan b) {
  return a.size == b.size && std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace

ColumnBuilder::ColumnBuilder(const FeatureSpec& spec, uint64_t rows, size_t hint, BufferPool* pool)
    : spec_(spec),
      rows_(rows),
      element_bytes_(ElementBytes(spec.delivered)),
      fallback_(FindFallback(spec)) {
  if (!spec.ragged) stored_elements_ = Multiply(spec.shape);
  const bool one_hot = spec.options.one_hot != 0;
  const Element wanted = one_hot ? Element::kInt64 : spec.delivered;
  if (wanted != spec.element) conversion_ = Conversion(spec.element, wanted);
  if (one_hot) {
    const float one = 1;
    Conversion(Element::kFloat32, spec.delivered)(reinterpret_cast<const uint8_t*>(&one), 1, one_);
  }
  if (spec.is_dense()) {
    row_elements_ = Multiply(spec.row_shape());
    row_bytes_ = Multiply(row_elements_, element_bytes_);
  }
  if (has_pictures()) extent_ = {spec.options.image->height, spec.options.image->width};
  data_ = pool->Take(spec.is_dense() ? Multiply(rows, row_bytes_) : hint);
  if (spec.is_bytes()) {
    const uint64_t values = spec.ragged ? rows : Multiply(rows, stored_elements_);
    offsets_ = pool->Take(Multiply(values + 1, sizeof(int64_t)));
    PutNumber(&offsets_, 0, 0);
  }
  if (spec.options.pad) {
    lengths_ = pool->Take(Multiply(rows, sizeof(int64_t)));
  } else if (spec.ragged) {
    splits_ = pool->Take(Multiply(rows + 1, sizeof(int64_t)));
    PutNumber(&splits_, 0, 0);
  }
}

void ColumnBuilder::Append(const FeatureView& given, std::vector<LargeValue>* later) {
  // A writer may omit a feature that has no values, or leave its kind unset.
  const bool absent = given.record == nullptr || (given.kind == Kind::kNone && !spec_.ragged);
  const FeatureView& feature = absent ? fallback_ : given;
  if (absent) later = nullptr;  // the fallback is not in the record
  CheckKind(spec_, feature, ": give it a default, or do not select it");
  if (feature.kind == Kind::kNone) {
    if (spec_.options.pad) PadRow(0);
  } else if (has_pictures()) {
    picture_ =
        spec_.raw ? RawValue(spec_, feature) : OneValue(spec_, feature, "1 that holds a picture");
  } else if (spec_.options.one_hot != 0) {
    AppendOneHot(feature);
  } else if (spec_.raw) {
    AppendRaw(feature, later);
  } else if (spec_.kind == Kind::kBytes) {
    AppendBytes(feature, later);
  } else if (spec_.is_dense()) {
    AppendDenseNumbers(feature);
  } else {
    AppendRaggedNumbers(feature);
  }
  EndRow();
}

void ColumnBuilder::Rollback(const Mark& mark) {
  row_ = mark.row;
  values_ = mark.values;
  used_ = mark.used;
}

void ColumnBuilder::AppendRaw(const FeatureView& feature, std::vector<LargeValue>* later) {
  ByteSpan value = RawValue(spec_, feature);
  uint64_t count = value.size / ElementBytes(spec_.element);
  if (spec_.options.pad) count = std::min(count, row_elements_);
  value.size = count * ElementBytes(spec_.element);
  const size_t bytes = count * element_bytes_;
  data_.Grow(used_, used_ + bytes);
  if (later != nullptr && value.size >= kLargeValue) {
    later->push_back({this, used_, value});
  } else if (conversion_) {
    conversion_(value.data, count, data_.data() + used_);
  } else if (bytes != 0) {
    std::memcpy(data_.data() + used_, value.data, bytes);
  }
  if (spec_.options.pad) {
    PadRow(count);
    return;
  }
  if (spec_.ragged) values_ += count;
  used_ += bytes;
}

Extent ColumnBuilder::MeasurePicture(ImageDecoder* decoder) const {
  if (!spec_.raw) return decoder->Measure(picture_, spec_.options.image->max_pixels);
  return {static_cast<uint32_t>(spec_.shape[0]), static_cast<uint32_t>(spec_.shape[1])};
}

void ColumnBuilder::DecodePicture(ImageDecoder* decoder, Extent picture, uint64_t key) {
  const ImageOptions& image = *spec_.options.image;
  const Placement placement = cachecd::Place(image, picture, key);
  const Extent result = placement.result;
  if (used_ == 0 && spec_.is_unsized()) {
    extent_ = result;
    row_bytes_ = Multiply(Multiply(result.height, result.width), image.channels());
    data_.Grow(0, Multiply(rows_, row_bytes_));
  }
  if (result.height != extent_.height || result.width != extent_.width) {
    throw SchemaMismatch("the picture becomes " + ToText(result) +
                         ", but earlier pictures in the batch " + ToText(extent_) +
                         ": give a pair as size, a crop, or batch_size=1");
  }
  uint8_t* to = data_.data() + used_;
  if (spec_.raw) {
    const uint32_t channels = spec_.shape.size() == 3 ? static_cast<uint32_t>(spec_.shape[2]) : 1;
    decoder->Convert(picture_.data, picture, channels, image, placement, to);
  } else {
    decoder->Decode(picture_, image, placement, to);
  }
  used_ += row_bytes_;
}

void ColumnBuilder::AppendOneHot(const FeatureView& feature) {
  int64_t label = 0;
  const auto to = reinterpret_cast<uint8_t*>(&label);
  if (!spec_.raw) {
    NumberReader numbers(feature);
    const uint64_t count = numbers.Read(to, 1) + numbers.Skip();
    if (count != 1) Refuse(spec_, Count(count, "value"), "1");
  } else if (conversion_) {
    conversion_(RawValue(spec_, feature).data, 1, to);
  } else {
    std::memcpy(to, RawValue(spec_, feature).data, sizeof label);
  }
  if (label < 0 || static_cast<uint64_t>(label) >= row_elements_) {
    RefuseFeature(spec_.name, "the record has class " + std::to_string(label) +
                                  ", one_hot has 0 to " + std::to_string(row_elements_ - 1));
  }
  std::memset(data_.data() + used_, 0, row_bytes_);
  std::memcpy(data_.data() + used_ + static_cast<size_t>(label) * element_bytes_, one_,
              element_bytes_);
  used_ += row_bytes_;
}

void ColumnBuilder::AppendDenseNumbers(const FeatureView& feature) {
  // Writes at most `row_elements_` values, then compares the count.
  NumberReader numbers(feature, conversion_);
  const uint64_t count = numbers.Read(data_.data() + used_, row_elements_);
  const uint64_t beyond = numbers.Skip();
  if (spec_.options.pad) {
    PadRow(count);
    return;
  }
  if (count + beyond != row_elements_) {
    Refuse(spec_, Count(count + beyond, "value"), std::to_string(row_elements_));
  }
  used_ += row_bytes_;
}

void ColumnBuilder::AppendRaggedNumbers(const FeatureView& feature) {
  NumberReader numbers(feature, conversion_);
  uint64_t room;
  uint64_t count;
  do {
    data_.Grow(used_, used_ + kRaggedStep * element_bytes_);
    room = (data_.capacity() - used_) / element_bytes_;
    count = numbers.Read(data_.data() + used_, room);
    values_ += count;
    used_ += count * element_bytes_;
  } while (count == room);
}

void ColumnBuilder::PadRow(uint64_t count) {
  const auto* value = reinterpret_cast<const uint8_t*>(spec_.options.pad_value.data());
  FillElements(data_.data() + used_ + count * element_bytes_, row_elements_ - count, value,
               element_bytes_);
  PutNumber(&lengths_, row_, count);
  used_ += row_bytes_;
}

void ColumnBuilder::AppendBytes(const FeatureView& feature, std::vector<LargeValue>* later) {
  const uint64_t before = values_;
  ForEachBytes(feature, [&](ByteSpan value) {
    if (!spec_.ragged && values_ - before == stored_elements_) {
      Refuse(spec_, Count(CountValues(feature), "value"), std::to_string(stored_elements_));
    }
    data_.Grow(used_, used_ + value.size);
    if (later != nullptr && value.size >= kLargeValue) {
      later->push_back({this, used_, value});
    } else if (value.size != 0) {
      std::memcpy(data_.data() + used_, value.data, value.size);
    }
    used_ += value.size;
    EndValue();
  });
  if (!spec_.ragged && values_ - before != stored_elements_) {
    Refuse(spec_, Count(values_ - before, "value"), std::to_string(stored_elements_));
  }
}

void ColumnBuilder::EndValue() { PutNumber(&offsets_, ++values_, used_); }

void ColumnBuilder::EndRow() {
  ++row_;
  if (spec_.ragged && !spec_.options.pad) PutNumber(&splits_, row_, values_);
}

void ColumnBuilder::AppendEmpty() {
  if (spec_.options.pad) {
    PadRow(0);
  } else if (spec_.is_dense()) {
    if (row_bytes_ != 0) std::memset(data_.data() + used_, 0, row_bytes_);
    used_ += row_bytes_;
  } else if (!spec_.ragged) {
    for (uint64_t i = 0; i < stored_elements_; ++i) EndValue();
  }
  EndRow();
}

void ColumnBuilder::Finish(std::vector<Column>* columns) {
  Column column{spec_.columns().front(), {}};
  const auto rows = static_cast<int64_t>(rows_);
  const auto values = static_cast<int64_t>(values_);
  std::vector<int64_t> shape{static_cast<int64_t>(used_ / element_bytes_)};
  if (spec_.is_dense()) {
    shape = spec_.row_shape();
    if (has_pictures()) {
      shape[0] = extent_.height;
      shape[1] = extent_.width;
    }
    shape.insert(shape.begin(), rows);
  }
  column.arrays.push_back({std::move(data_), spec_.delivered, std::move(shape)});
  if (spec_.is_bytes()) {
    column.arrays.push_back({std::move(offsets_), Element::kInt64, {values + 1}});
  }
  if (spec_.ragged && !spec_.options.pad) {
    column.arrays.push_back({std::move(splits_), Element::kInt64, {rows + 1}});
  }
  columns->push_back(std::move(column));
  if (!spec_.options.pad) return;
  Column lengths{spec_.columns().back(), {}};
  lengths.arrays.push_back({std::move(lengths_), Element::kInt64, {rows}});
  columns->push_back(std::move(lengths));
}

void ColumnBuilder::CheckFallback(const FeatureSpec& spec) {
  if (spec.options.fallback.empty()) return;
  try {
    ColumnBuilder builder(spec, 1, 0, BufferPool::Create(0).get());
    if (builder.fallback_.record == nullptr) RefuseFeature(spec.name, "the default lacks it");
    builder.Append({}, nullptr);
  } catch (const std::runtime_error& error) {  // SchemaMismatch, MalformedExample
    throw SchemaMismatch(std::string("the default does not fit: ") + error.what());
  }
}

RecordCheck::RecordCheck(std::vector<FeatureSpec> schema)
    : schema_(std::move(schema)), finder_(schema_) {
  // Throws now for a shape that is too large, rather than between records.
  for (const FeatureSpec& spec : schema_)
    Multiply(Multiply(spec.shape), ElementBytes(spec.element));
}

std::optional<Misfit> RecordCheck::operator()(ByteSpan record) {
  std::string_view checked;
  FeatureView view;
  const auto check = [&](std::string_view name, ByteSpan feature) {
    checked = name;
    view = feature.data == nullptr ? FeatureView() : ParseFeature(feature, record.data);
  };
  std::string why;
  try {
    found_.assign(schema_.size(), {});
    size_t rank = 0;
    ForEachFeature(record, [&](std::string_view name, ByteSpan feature) {
      const int index = finder_.Find(rank++, name);
      if (index < 0) {
        check(name, feature);
        if (view.kind == Kind::kNone) return;  // no value is lost
        throw SchemaMismatch("feature '" + std::string(name) + "' is not in the schema");
      }
      ByteSpan& found = found_[static_cast<size_t>(index)];
      if (found.data != nullptr && !AreEqual(found, feature)) {
        check(name, feature);
        RefuseFeature(std::string(name), "the record has it twice, with different values");
      }
      found = feature;
    });
    for (size_t i = 0; i < schema_.size(); ++i) {
      check(schema_[i].name, found_[i]);
      CheckFeature(schema_[i], view);
    }
    return std::nullopt;
  } catch (const SchemaMismatch& error) {
    why = error.what();
  } catch (const MalformedExample& error) {
    return Misfit{error.what(), {}, Kind::kNone, 0};
  }
  // Counting may find that the feature is malformed.
  try {
    return Misfit{why, std::string(checked), view.kind, CountValues(view)};
  } catch (const MalformedExample& error) {
    return Misfit{error.what(), {}, Kind::kNone, 0};
  }
}

}  // namespace cachecd
