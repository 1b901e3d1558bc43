// Any bytes as a tf.train.Example: decoded, encoded again, and gathered into columns.

#include "example.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../native/harness.h"
#include "columns.h"
#include "columns_check.h"
#include "errors.h"
#include "fuzzer.h"
#include "memory.h"
#include "mutate.h"
#include "numbers.h"
#include "reference.h"

namespace cachecd::native {
namespace {

constexpr size_t kFixed = 256 << 10;
constexpr size_t kTimes = 128;  // a byte of input is at most eight of a column, in several copies

using Views = std::map<std::string, FeatureView>;

bool Within(ByteSpan part, ByteSpan whole) {
  return part.size == 0 || (part.begin() >= whole.begin() && part.end() <= whole.end());
}

// Which features the record has, by the core.
Views View(ByteSpan record) {
  std::map<std::string, ByteSpan> last;
  ForEachFeature(record, [&](std::string_view name, ByteSpan feature) {
    EXPECT(Within({reinterpret_cast<const uint8_t*>(name.data()), name.size()}, record));
    EXPECT(Within(feature, record));
    last[std::string(name)] = feature;
  });
  Views views;
  for (const auto& [name, feature] : last) {
    views[name] = feature.data == nullptr ? FeatureView() : ParseFeature(feature, record.data);
    EXPECT(Within(views[name].lists, record));
  }
  return views;
}

void ReadNumbers(const FeatureView& view, uint8_t* to, uint64_t count) {
  NumberReader numbers(view);
  EXPECT(numbers.Read(to, count) == count && numbers.Skip() == 0);
}

ReferenceFeature Values(const FeatureView& view, ByteSpan record) {
  ReferenceFeature feature;
  feature.kind = view.kind;
  feature.has_value = view.record != nullptr;
  const uint64_t count = CountValues(view);
  if (view.kind == Kind::kBytes) {
    ForEachBytes(view, [&](ByteSpan value) {
      EXPECT(Within(value, record));
      feature.bytes.emplace_back(value.begin(), value.end());
    });
  } else if (view.kind == Kind::kInt64) {
    feature.ints.resize(count);
    ReadNumbers(view, reinterpret_cast<uint8_t*>(feature.ints.data()), count);
  } else if (view.kind == Kind::kFloat) {
    feature.floats.resize(count);
    ReadNumbers(view, reinterpret_cast<uint8_t*>(feature.floats.data()), count);
  }
  EXPECT(feature.count() == count);
  return feature;
}

std::optional<ReferenceExample> Decode(ByteSpan record) {
  try {
    ReferenceExample example;
    for (const auto& [name, view] : View(record)) example[name] = Values(view, record);
    return example;
  } catch (const MalformedExample&) {
    return std::nullopt;
  }
}

Bytes Encode(const ReferenceExample& example) {
  std::vector<FeatureValue> features;
  for (const auto& [name, feature] : example) {
    FeatureValue value;
    value.name = name;
    value.kind = feature.kind;
    for (const std::string& each : feature.bytes) {
      value.bytes.push_back({reinterpret_cast<const uint8_t*>(each.data()), each.size()});
    }
    value.ints = feature.ints.data();
    value.floats = reinterpret_cast<const float*>(feature.floats.data());
    value.count = feature.kind == Kind::kBytes ? 0 : feature.count();
    features.push_back(std::move(value));
  }
  Bytes bytes(PlanExample(&features));
  WriteExample(features, bytes.data());
  return bytes;
}

FeatureOptions Cast(const char* dtype) {
  FeatureOptions options;
  options.cast = dtype;
  return options;
}

FeatureOptions Pad(uint64_t length, const std::string& value, const char* dtype = "") {
  FeatureOptions options = Cast(dtype);
  options.pad = length;
  options.pad_value = value;
  return options;
}

FeatureOptions OneHot(uint64_t classes, const char* dtype) {
  FeatureOptions options = Cast(dtype);
  options.one_hot = classes;
  return options;
}

const std::vector<FeatureSpec>& Specs() {
  static const std::vector<FeatureSpec> specs = {
      FeatureSpec::Make("label", "int64", "int64", false, {}, false),
      FeatureSpec::Make("list", "int64", "int64", true, {}, false),
      FeatureSpec::Make("vector", "float", "float32", false, {3}, false),
      FeatureSpec::Make("floats", "float", "float32", true, {}, false),
      FeatureSpec::Make("name", "bytes", "bytes", false, {}, false),
      FeatureSpec::Make("pair", "bytes", "bytes", false, {2}, false),
      FeatureSpec::Make("names", "bytes", "bytes", true, {}, false),
      FeatureSpec::Make("image", "bytes", "uint16", false, {2, 2}, true),
      // Made something else of.
      FeatureSpec::Make("list", "int64", "int64", true, {}, false, Cast("float32")),
      FeatureSpec::Make("vector", "float", "float32", false, {3}, false, Cast("bfloat16")),
      FeatureSpec::Make("large", "bytes", "uint8", false, {64, 65}, true, Cast("float16")),
      FeatureSpec::Make("list", "int64", "int64", true, {}, false, Pad(2, "\x07", "int8")),
      FeatureSpec::Make("floats", "float", "float32", true, {}, false, Pad(4, "ab", "float16")),
      FeatureSpec::Make("label", "int64", "int64", false, {}, false, OneHot(400, "uint8")),
      FeatureSpec::Make("scalar", "bytes", "int8", false, {}, true, OneHot(7, "int64")),
  };
  return specs;
}

// A row of a feature, as the core makes one: what is large is copied by the caller.
void AppendRow(ColumnBuilder* builder, const FeatureView& view, bool large_later) {
  std::vector<LargeValue> later;
  builder->Append(view, large_later ? &later : nullptr);
  for (const LargeValue& value : later) {
    const Conversion& convert = builder->conversion();
    if (convert) {
      convert(value.from.data, value.from.size / convert.from_bytes(), builder->Place(value));
    } else {
      std::memcpy(builder->Place(value), value.from.data, value.from.size);
    }
  }
}

// What of a record was appended before it proved wrong is taken out again.
void RefusedRowLeavesNothing(ColumnBuilder* builder, const ColumnBuilder::Mark& mark,
                             const FeatureSpec& spec, uint64_t rows) {
  builder->Rollback(mark);
  for (uint64_t row = mark.row; row < rows; ++row) builder->AppendEmpty();
  std::vector<Column> columns;
  builder->Finish(&columns);
  ExpectSound(columns.data(), spec, rows);
  for (uint64_t row = mark.row; row < rows; ++row) ExpectEmptyRow(columns.data(), spec, row);
}

// A row of the feature, one that is taken out again, and one of nothing.
void ColumnAgrees(const FeatureSpec& spec, const FeatureView& view, ByteSpan record) {
  constexpr uint64_t kRows = 2;
  const auto pool = BufferPool::Create(0);
  ColumnBuilder builder(spec, kRows, 1, pool.get());
  ColumnBuilder::Mark mark = builder.mark();
  try {
    AppendRow(&builder, view, true);
    mark = builder.mark();
    AppendRow(&builder, view, false);
  } catch (const std::runtime_error& error) {
    RefusedRowLeavesNothing(&builder, mark, spec, kRows);
    EXPECT(mark.row == 0);
    // A mismatch may be found before the feature proves malformed: then Values throws.
    const ReferenceFeature feature = Values(view, record);
    EXPECT(!Fits(spec, Resolved(spec, &feature)));
    return;
  }
  builder.Rollback(mark);
  builder.AppendEmpty();
  std::vector<Column> columns;
  builder.Finish(&columns);
  EXPECT(columns.size() == NumColumns(spec));
  ExpectSound(columns.data(), spec, kRows);
  const ReferenceFeature feature = Values(view, record);
  const ReferenceFeature resolved = Resolved(spec, &feature);
  EXPECT(Fits(spec, resolved));
  ExpectRow(columns.data(), spec, 0, resolved);
  ExpectEmptyRow(columns.data(), spec, 1);
}

// For each spec every feature, as if named so; and none.
void ColumnsAgree(const Views& views, ByteSpan record) {
  for (const FeatureSpec& spec : Specs()) {
    ColumnAgrees(spec, FeatureView(), record);
    for (const auto& [name, view] : views) {
      try {
        ColumnAgrees(spec, view, record);
      } catch (const MalformedExample&) {
      }
    }
  }
}

// A record fits a schema if and only if a reader of all its features delivers all its values.
void CheckAgrees(ByteSpan record) {
  static const std::vector<FeatureSpec> schema(Specs().begin(), Specs().begin() + 8);
  static RecordCheck check(schema);
  bool fits = true;
  try {
    Views views = View(record);
    size_t entries = 0;
    ForEachFeature(record, [&](std::string_view, ByteSpan) { ++entries; });
    const bool repeated = entries != views.size();
    for (const FeatureSpec& spec : schema) {
      const ReferenceFeature feature = Values(views[spec.name], record);
      fits &= Fits(spec, Resolved(spec, &feature));
      views.erase(spec.name);
    }
    for (const auto& [name, view] : views) fits &= view.kind == Kind::kNone;
    if (repeated && fits) return;  // whether the values are the same decides
  } catch (const MalformedExample&) {
    fits = false;
  }
  EXPECT(!check(record) == fits);
}

}  // namespace
}  // namespace cachecd::native

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachecd::native;
  Specs();
  const MemoryWatch watch;
  const cachecd::ByteSpan record{data, size};
  const auto decoded = Decode(record);
  const auto expected = ParseExample(record);
  // The core may skip what does not parse; what parses it may not refuse.
  if (expected) EXPECT(decoded == expected);
  if (decoded) {
    const Bytes bytes = Encode(*decoded);
    EXPECT(ParseExample(Span(bytes)) == decoded);
    EXPECT(Decode(Span(bytes)) == decoded);
  }
  try {
    CheckAgrees(record);
    ColumnsAgree(View(record), record);
  } catch (const cachecd::MalformedExample&) {
    EXPECT(!decoded);
  }
  EXPECT(watch.Peak() <= kFixed + kTimes * size);
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  using namespace cachecd::native;
  Random chance(seed);
  Bytes bytes(data, data + size);
  if (chance.OneIn(4)) {
    MutateBytes(&bytes, most);
  } else {
    MutateMessage(&bytes, most, &chance);
  }
  return Replace(bytes, data, most);
}
