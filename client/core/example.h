// Parses serialized tf.train.Examples in place, and writes them in one pass, without generated
// code.
//
//     message Example    { Features features = 1; }
//     message Features   { map<string, Feature> feature = 1; }
//     message Feature    { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }
//     message *List      { repeated bytes|float|int64 value = 1; }     numbers packed or not
// Parsing follows protocol buffers: unknown fields are skipped, and repeated messages are merged.
// If several map entries have one name, or a Feature has several kinds, the last of them counts.
// The only difference: a map entry with two values, which no writer makes, is refused. Every length
// is checked against the remaining bytes before it is used. Malformed bytes, and a
// tf.train.SequenceExample, throw MalformedExample with their offset in the record. Spans point
// into the record.

#ifndef CACHECD_CORE_EXAMPLE_H_
#define CACHECD_CORE_EXAMPLE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "bytes.h"

namespace cachecd {

// The values are the field numbers in Feature.
enum class Kind : uint8_t { kNone = 0, kBytes = 1, kFloat = 2, kInt64 = 3 };

// Returns "bytes", "float" or "int64"; "nothing" if the kind of the Feature is not set.
const char* KindName(Kind kind);

// A cursor over the fields of one message.
class WireReader {
 public:
  // `record` is the start of the whole record, for offsets in errors.
  WireReader(ByteSpan message, const uint8_t* record)
      : at_(message.begin()), end_(message.end()), record_(record) {}

  struct Field {
    uint32_t number = 0;
    uint32_t wire_type = 0;
    const uint8_t* start = nullptr;  // of the tag
    ByteSpan bytes;                  // content of a length-delimited or fixed field
    uint64_t varint = 0;             // value of a varint field
  };

  // Returns false at the end of the message.
  bool Next(Field* field);

  // Reads one varint.
  uint64_t Varint() { return at_ != end_ && *at_ < 0x80 ? *at_++ : LongVarint(); }

  // Reads at most `limit` varints of a packed list, fewer only at the end. Returns their number.
  uint64_t Varints(int64_t* to, uint64_t limit);

  bool AtEnd() const { return at_ == end_; }

 private:
  uint64_t LongVarint();
  ByteSpan Take(uint64_t size);
  void SkipGroup(uint32_t number);
  [[noreturn]] void Fail(const char* why) const;

  const uint8_t* at_;
  const uint8_t* end_;
  const uint8_t* record_;
};

constexpr uint32_t kWireVarint = 0;
constexpr uint32_t kWireFixed64 = 1;
constexpr uint32_t kWireBytes = 2;
constexpr uint32_t kWireGroup = 3;
constexpr uint32_t kWireGroupEnd = 4;
constexpr uint32_t kWireFixed32 = 5;

// One Feature: its kind and the part of its message that holds the lists of that kind.
struct FeatureView {
  Kind kind = Kind::kNone;
  ByteSpan lists;
  const uint8_t* record = nullptr;
};

// Calls visit(std::string_view name, ByteSpan feature) for each map entry, in the record's order.
template <typename Visit>
void ForEachFeature(ByteSpan record, Visit visit);

// Returns the kind and the lists of a Feature message.
FeatureView ParseFeature(ByteSpan feature, const uint8_t* record);

// Returns the number of values that NumberReader would read. Takes one pass over unpacked or
// integer lists, but decodes no number. Throws MalformedExample.
uint64_t CountValues(const FeatureView& feature);

// Throws MalformedExample if the length of a packed list of floats is not a multiple of four.
[[noreturn]] void RefuseFloats(const WireReader::Field& value, const uint8_t* record);

// Returns the number of floats in a fixed32 field or a packed list. Throws MalformedExample.
inline uint64_t CountFloats(const WireReader::Field& value, const uint8_t* record) {
  if (value.bytes.size % sizeof(float) != 0) RefuseFloats(value, record);
  return value.bytes.size / sizeof(float);
}

// Calls visit(ByteSpan value) for each value of a bytes list.
template <typename Visit>
void ForEachBytes(const FeatureView& feature, Visit visit);

// A feature to write. The values must live until WriteExample returns.
struct FeatureValue {
  std::string_view name;
  Kind kind = Kind::kNone;
  std::vector<ByteSpan> bytes;
  const int64_t* ints = nullptr;
  const float* floats = nullptr;
  size_t count = 0;  // of ints or floats
  // Filled in by PlanExample.
  uint64_t packed_bytes = 0;  // of ints
  uint64_t list_bytes = 0;
};

// Sorts features by name, so that equal features make equal bytes. Returns the Example's size.
uint64_t PlanExample(std::vector<FeatureValue>* features);

// Writes exactly the planned number of bytes. If another thread has changed an array of ints, and
// its packed size differs from the plan, throws UsageError and writes nothing beyond the plan.
void WriteExample(const std::vector<FeatureValue>& features, uint8_t* to);

// Implementation of the templates.

// Throws MalformedExample.
[[noreturn]] void RefuseSequence();

// Parses one map entry; returns false for another field.
bool ParseEntry(const WireReader::Field& field, const uint8_t* record, std::string_view* name,
                ByteSpan* feature);

template <typename Visit>
void ForEachFeature(ByteSpan record, Visit visit) {
  WireReader example(record, record.data);
  WireReader::Field features;
  while (example.Next(&features)) {
    if (features.wire_type != kWireBytes) continue;
    if (features.number == 2) RefuseSequence();
    if (features.number != 1) continue;
    WireReader map(features.bytes, record.data);
    WireReader::Field entry;
    std::string_view name;
    ByteSpan feature;
    while (map.Next(&entry)) {
      if (ParseEntry(entry, record.data, &name, &feature)) visit(name, feature);
    }
  }
}

// Calls visit(Field) for each `value` field of each list, whatever its wire type.
template <typename Visit>
void ForEachValueField(const FeatureView& feature, Visit visit) {
  WireReader lists(feature.lists, feature.record);
  WireReader::Field list;
  while (lists.Next(&list)) {
    if (list.number != static_cast<uint32_t>(feature.kind) || list.wire_type != kWireBytes)
      continue;
    WireReader values(list.bytes, feature.record);
    WireReader::Field value;
    while (values.Next(&value)) {
      if (value.number == 1) visit(value);
    }
  }
}

template <typename Visit>
void ForEachBytes(const FeatureView& feature, Visit visit) {
  ForEachValueField(feature, [&](const WireReader::Field& value) {
    if (value.wire_type == kWireBytes) visit(value.bytes);
  });
}

}  // namespace cachecd

#endif  // CACHECD_CORE_EXAMPLE_H_
