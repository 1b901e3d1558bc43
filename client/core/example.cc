#include "example.h"

#include <algorithm>
#include <string>

#include "errors.h"
#include "varint.h"

namespace cachecd {
namespace {

constexpr int kMaxGroupDepth = 100;  // the limit of protocol buffers
constexpr size_t kMaxVarint = 10;    // bytes

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

uint8_t* PutVarint(uint8_t* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *to++ = static_cast<uint8_t>(value | 0x80);
  *to++ = static_cast<uint8_t>(value);
  return to;
}

// All field numbers here are below 16, so a tag is one byte.
uint8_t* PutLength(uint8_t* to, uint32_t number, uint64_t size) {
  *to++ = static_cast<uint8_t>((number << 3) | kWireBytes);
  return PutVarint(to, size);
}

uint8_t* PutBytes(uint8_t* to, uint32_t number, const void* data, size_t size) {
  to = PutLength(to, number, size);
  if (size != 0) std::memcpy(to, data, size);
  return to + size;
}

uint64_t DelimitedSize(uint64_t size) { return 1 + VarintSize(size) + size; }

uint64_t PackedIntsSize(const FeatureValue& feature) {
  uint64_t size = 0;
  for (size_t i = 0; i < feature.count; ++i) {
    size += VarintSize(static_cast<uint64_t>(feature.ints[i]));
  }
  return size;
}

uint8_t* PutPackedInts(uint8_t* to, const FeatureValue& feature) {
  uint8_t* const end = to + feature.packed_bytes;
  bool fits = true;
  for (size_t i = 0; i < feature.count && fits; ++i) {
    // Each integer is read once, so the value that was measured is the value that is written.
    const uint64_t value =
        static_cast<uint64_t>(__atomic_load_n(&feature.ints[i], __ATOMIC_RELAXED));
    const auto left = static_cast<size_t>(end - to);
    fits = left >= kMaxVarint || left >= VarintSize(value);
    if (fits) to = PutVarint(to, value);
  }
  if (!fits || to != end) {
    throw UsageError("feature '" + std::string(feature.name) +
                     "': its array was changed while it was encoded; copy it first");
  }
  return to;
}

uint64_t ListSize(const FeatureValue& feature) {
  switch (feature.kind) {
    case Kind::kBytes: {
      uint64_t size = 0;
      for (const ByteSpan& value : feature.bytes) size += DelimitedSize(value.size);
      return size;
    }
    case Kind::kFloat:
      return feature.count == 0 ? 0 : DelimitedSize(feature.count * sizeof(float));
    case Kind::kInt64:
      return feature.count == 0 ? 0 : DelimitedSize(feature.packed_bytes);
    case Kind::kNone:
      break;
  }
  return 0;
}

uint64_t MessageSize(const FeatureValue& feature) {
  return feature.kind == Kind::kNone ? 0 : DelimitedSize(feature.list_bytes);
}

uint64_t EntrySize(const FeatureValue& feature) {
  return DelimitedSize(feature.name.size()) + DelimitedSize(MessageSize(feature));
}

uint64_t MapSize(const std::vector<FeatureValue>& features) {
  uint64_t size = 0;
  for (const FeatureValue& feature : features) size += DelimitedSize(EntrySize(feature));
  return size;
}

// Returns the number of varints. Throws MalformedExample, as WireReader does.
uint64_t CountVarints(ByteSpan packed, const uint8_t* record) {
  constexpr size_t kBlock = 255;  // the most that a byte counts, so that the compiler adds bytes
  constexpr uint64_t kSeven = 0x0080808080808080;
  uint64_t count = 0;
  for (size_t begin = 0; begin < packed.size; begin += kBlock) {
    const size_t end = std::min(packed.size, begin + kBlock);
    uint8_t last = 0;  // exactly one byte of each varint, its last, is below 0x80
    for (size_t i = begin; i < end; ++i) last += packed.data[i] < 0x80;
    count += last;
  }
  // Any ten bytes of 0x80 or more have seven in a row that begin at a multiple of four.
  bool is_odd = packed.size != 0 && packed.end()[-1] >= 0x80;
  for (size_t i = 0; i + sizeof(uint64_t) <= packed.size; i += 4) {
    is_odd |= (LoadU64(packed.data + i) & kSeven) == kSeven;
  }
  if (is_odd) {
    for (WireReader numbers(packed, record); !numbers.AtEnd();) numbers.Varint();
  }
  return count;
}

}  // namespace

void RefuseSequence() {
  throw MalformedExample(
      "a tf.train.SequenceExample (feature_lists), which is not supported: write each list as a "
      "feature of a tf.train.Example");
}

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kBytes:
      return "bytes";
    case Kind::kFloat:
      return "float";
    case Kind::kInt64:
      return "int64";
    case Kind::kNone:
      break;
  }
  return "nothing";
}

void WireReader::Fail(const char* why) const {
  throw MalformedExample(static_cast<uint64_t>(at_ - record_), why);
}

uint64_t WireReader::LongVarint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ == end_) Fail("a number is cut short");
    const uint8_t byte = *at_++;
    value |= shift < 64 ? uint64_t{byte & 0x7fu} << shift : 0;
    if (byte < 0x80) return value;
  }
  Fail("a number is longer than ten bytes");
}

uint64_t WireReader::Varints(int64_t* to, uint64_t limit) {
  uint64_t count = DecodeVarints(&at_, end_, to, limit);
  for (; count < limit && at_ != end_; ++count) to[count] = static_cast<int64_t>(Varint());
  return count;
}

ByteSpan WireReader::Take(uint64_t size) {
  if (size > static_cast<uint64_t>(end_ - at_)) Fail("a length exceeds the enclosing message");
  const ByteSpan taken{at_, static_cast<size_t>(size)};
  at_ += size;
  return taken;
}

bool WireReader::Next(Field* field) {
  if (at_ == end_) return false;
  field->start = at_;
  const uint64_t tag = Varint();
  field->number = static_cast<uint32_t>(tag >> 3);
  field->wire_type = tag & 7;
  if (tag > UINT32_MAX || field->number == 0) Fail("a field has an impossible tag");
  switch (field->wire_type) {
    case kWireVarint:
      field->varint = Varint();
      return true;
    case kWireFixed64:
      field->bytes = Take(8);
      return true;
    case kWireBytes:
      field->bytes = Take(Varint());
      return true;
    case kWireFixed32:
      field->bytes = Take(4);
      return true;
    case kWireGroup:
      SkipGroup(field->number);
      return true;
    default:
      Fail("a field has an impossible wire type");
  }
}

void WireReader::SkipGroup(uint32_t number) {
  uint32_t open[kMaxGroupDepth];
  int depth = 0;
  open[depth++] = number;
  while (depth > 0) {
    const uint64_t tag = Varint();
    const uint64_t inner = tag >> 3;
    if (tag > UINT32_MAX || inner == 0) Fail("a field has an impossible tag");
    switch (tag & 7) {
      case kWireVarint:
        Varint();
        break;
      case kWireFixed64:
        Take(8);
        break;
      case kWireBytes:
        Take(Varint());
        break;
      case kWireFixed32:
        Take(4);
        break;
      case kWireGroup:
        if (depth == kMaxGroupDepth) Fail("groups are nested too deeply");
        open[depth++] = static_cast<uint32_t>(inner);
        break;
      case kWireGroupEnd:
        if (open[--depth] != inner) Fail("a group ends that did not begin");
        break;
      default:
        Fail("a field has an impossible wire type");
    }
  }
}

bool ParseEntry(const WireReader::Field& field, const uint8_t* record, std::string_view* name,
                ByteSpan* feature) {
  if (field.number != 1 || field.wire_type != kWireBytes) return false;
  *name = {};
  *feature = {};
  bool has_value = false;
  WireReader entry(field.bytes, record);
  WireReader::Field part;
  while (entry.Next(&part)) {
    if (part.wire_type != kWireBytes) continue;
    if (part.number == 1) {
      *name = {reinterpret_cast<const char*>(part.bytes.data), part.bytes.size};
    } else if (part.number == 2) {
      if (has_value) {
        throw MalformedExample(static_cast<uint64_t>(part.start - record),
                               "a map entry holds two values");
      }
      has_value = true;
      *feature = part.bytes;
    }
  }
  return true;
}

FeatureView ParseFeature(ByteSpan feature, const uint8_t* record) {
  FeatureView view{Kind::kNone, {feature.end(), 0}, record};
  WireReader fields(feature, record);
  WireReader::Field field;
  while (fields.Next(&field)) {
    if (field.number > 3 || field.wire_type != kWireBytes) continue;
    const Kind kind = static_cast<Kind>(field.number);
    // Setting another member of the oneof clears the member set before.
    if (kind != view.kind) {
      view.kind = kind;
      view.lists = {field.start, static_cast<size_t>(feature.end() - field.start)};
    }
  }
  return view;
}

void RefuseFloats(const WireReader::Field& value, const uint8_t* record) {
  throw MalformedExample(static_cast<uint64_t>(value.start - record),
                         "the length of a packed list of floats is not a multiple of four");
}

uint64_t CountValues(const FeatureView& feature) {
  uint64_t count = 0;
  ForEachValueField(feature, [&](const WireReader::Field& value) {
    switch (feature.kind) {
      case Kind::kBytes:
        count += value.wire_type == kWireBytes;
        break;
      case Kind::kFloat:
        if (value.wire_type == kWireFixed32 || value.wire_type == kWireBytes) {
          count += CountFloats(value, feature.record);
        }
        break;
      case Kind::kInt64:
        if (value.wire_type == kWireVarint) {
          ++count;
        } else if (value.wire_type == kWireBytes) {
          count += CountVarints(value.bytes, feature.record);
        }
        break;
      case Kind::kNone:
        break;
    }
  });
  return count;
}

uint64_t PlanExample(std::vector<FeatureValue>* features) {
  std::sort(features->begin(), features->end(),
            [](const FeatureValue& a, const FeatureValue& b) { return a.name < b.name; });
  for (FeatureValue& feature : *features) {
    if (feature.kind == Kind::kInt64) feature.packed_bytes = PackedIntsSize(feature);
    feature.list_bytes = ListSize(feature);
  }
  return DelimitedSize(MapSize(*features));
}

void WriteExample(const std::vector<FeatureValue>& features, uint8_t* to) {
  to = PutLength(to, 1, MapSize(features));
  for (const FeatureValue& feature : features) {
    to = PutLength(to, 1, EntrySize(feature));
    to = PutBytes(to, 1, feature.name.data(), feature.name.size());
    to = PutLength(to, 2, MessageSize(feature));
    if (feature.kind == Kind::kNone) continue;
    to = PutLength(to, static_cast<uint32_t>(feature.kind), feature.list_bytes);
    if (feature.kind == Kind::kBytes) {
      for (const ByteSpan& value : feature.bytes) to = PutBytes(to, 1, value.data, value.size);
    } else if (feature.count != 0 && feature.kind == Kind::kFloat) {
      to = PutBytes(to, 1, feature.floats, feature.count * sizeof(float));
    } else if (feature.count != 0) {
      to = PutPackedInts(PutLength(to, 1, feature.packed_bytes), feature);
    }
  }
}

}  // namespace cachecd
