#include "reference.h"

#include <array>
#include <cstring>

namespace cachecd::native {
namespace {

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}

uint64_t Number(const Bytes& file, uint64_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | file[at + static_cast<uint64_t>(i)];
  return value;
}

bool CrcAt(const Bytes& file, uint64_t at, uint64_t size) {
  return Number(file, at + size, 4) == ReferenceCrc(file.data() + at, size);
}

std::optional<uint64_t> LengthAt(const Bytes& file, uint64_t offset) {
  if (offset > file.size() || file.size() - offset < 16) return std::nullopt;
  const uint64_t length = Number(file, offset, 8);
  if (!CrcAt(file, offset, 8) || length > file.size() - offset - 16) return std::nullopt;
  return length;
}

// Protocol buffers' wire format. A parser that failed stays at its end.
class Message {
 public:
  explicit Message(ByteSpan bytes) : at_(bytes.begin()), end_(bytes.end()) {}

  bool failed() const { return failed_; }
  bool More() const { return at_ != end_; }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int i = 0; i < 10 && More(); ++i) {
      const uint8_t byte = *at_++;
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) return value;
    }
    return Fail();
  }

  ByteSpan Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) {
      Fail();
      return {};
    }
    at_ += size;
    return {at_ - size, static_cast<size_t>(size)};
  }

  struct Field {
    uint64_t number = 0;
    uint64_t type = 0;
    uint64_t varint = 0;
    ByteSpan bytes;
  };

  Field Next(int depth = 0) {
    Field field;
    const uint64_t tag = Varint();
    field.number = tag >> 3;
    field.type = tag & 7;
    if (field.number == 0 || tag > UINT32_MAX) Fail();
    if (field.type == 0) {
      field.varint = Varint();
    } else if (field.type == 1) {
      field.bytes = Take(8);
    } else if (field.type == 2) {
      field.bytes = Take(Varint());
    } else if (field.type == 5) {
      field.bytes = Take(4);
    } else if (field.type == 3 && depth < 50) {
      Field inner;
      do {
        inner = Next(depth + 1);
      } while (!failed_ && inner.type != 4);
      if (inner.number != field.number) Fail();
    } else if (field.type != 4 || depth == 0) {
      Fail();
    }
    return field;
  }

 private:
  uint64_t Fail() {
    failed_ = true;
    at_ = end_;
    return 0;
  }

  const uint8_t* at_;
  const uint8_t* end_;
  bool failed_ = false;
};

// Calls visit(field) for every field; false if one is malformed or visit says false.
template <typename Visit>
bool EachField(ByteSpan bytes, Visit visit) {
  Message message(bytes);
  while (message.More()) {
    const Message::Field field = message.Next();
    if (message.failed() || !visit(field)) return false;
  }
  return true;
}

std::string Text(ByteSpan bytes) { return std::string(bytes.begin(), bytes.end()); }

bool AddValue(const Message::Field& value, ReferenceFeature* feature) {
  if (value.number != 1) return true;
  if (feature->kind == Kind::kBytes && value.type == 2) {
    feature->bytes.push_back(Text(value.bytes));
  } else if (feature->kind == Kind::kInt64 && value.type == 0) {
    feature->ints.push_back(static_cast<int64_t>(value.varint));
  } else if (feature->kind == Kind::kInt64 && value.type == 2) {
    Message packed(value.bytes);
    while (packed.More()) feature->ints.push_back(static_cast<int64_t>(packed.Varint()));
    return !packed.failed();
  } else if (feature->kind == Kind::kFloat && (value.type == 5 || value.type == 2)) {
    if (value.bytes.size % 4 != 0) return false;
    for (size_t i = 0; i < value.bytes.size; i += 4) {
      uint32_t bits;
      std::memcpy(&bits, value.bytes.data + i, 4);
      feature->floats.push_back(bits);
    }
  }
  return true;
}

bool ParseOneof(ByteSpan bytes, ReferenceFeature* feature) {
  return EachField(bytes, [&](const Message::Field& field) {
    if (field.number > 3 || field.type != 2) return true;
    const Kind kind = static_cast<Kind>(field.number);
    if (kind != feature->kind) *feature = {};
    feature->kind = kind;
    return EachField(field.bytes,
                     [&](const Message::Field& value) { return AddValue(value, feature); });
  });
}

bool ParseMapEntry(ByteSpan bytes, ReferenceExample* example) {
  std::string name;
  ReferenceFeature feature;
  int values = 0;
  const bool whole = EachField(bytes, [&](const Message::Field& field) {
    if (field.type != 2) return true;
    if (field.number == 1) name = Text(field.bytes);
    if (field.number != 2) return true;
    return ++values == 1 && ParseOneof(field.bytes, &feature);
  });
  feature.has_value = values != 0;
  (*example)[name] = feature;
  return whole;
}

}  // namespace

uint32_t ReferenceCrc(const uint8_t* data, size_t size) {
  static const std::array<uint32_t, 256> table = MakeTable();
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < size; ++i) crc = table[(crc ^ data[i]) & 0xff] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::optional<uint64_t> FrameAt(const Bytes& file, uint64_t offset) {
  const std::optional<uint64_t> length = LengthAt(file, offset);
  if (!length || !CrcAt(file, offset + 12, *length)) return std::nullopt;
  return length;
}

Walked WalkFrames(const Bytes& file, bool payloads) {
  Walked walked;
  uint64_t offset = 0;
  while (offset < file.size()) {
    const auto length = payloads ? FrameAt(file, offset) : LengthAt(file, offset);
    if (!length) {
      walked.fault = offset;
      break;
    }
    walked.offsets.push_back(offset);
    offset += *length + 16;
  }
  return walked;
}

std::optional<uint64_t> SidecarRecords(const Bytes& file) {
  if (file.size() < 72 || std::memcmp(file.data(), "CACHECDX", 8) != 0) return std::nullopt;
  if (!CrcAt(file, 0, 48) || Number(file, 8, 4) != 2) return std::nullopt;
  const uint64_t meta = Number(file, 12, 4);
  const uint64_t records = Number(file, 16, 8);
  const uint64_t units = Number(file, 40, 4);
  const uint64_t table = Number(file, 44, 4);
  if (24 * units > table) return std::nullopt;
  if (records > file.size() || 72 + meta + table + 16 * records != file.size()) {
    return std::nullopt;
  }
  return records;
}

std::optional<ReferenceSidecar> ParseSidecar(const Bytes& file) {
  const std::optional<uint64_t> records = SidecarRecords(file);
  if (!records) return std::nullopt;
  const uint64_t offsets = 60 + Number(file, 12, 4) + Number(file, 44, 4);
  if (!CrcAt(file, offsets, 8 * *records)) return std::nullopt;
  ReferenceSidecar sidecar;
  sidecar.data_bytes = Number(file, 24, 8);
  for (uint64_t i = 0; i < *records; ++i) {
    sidecar.offsets.push_back(Number(file, offsets + 8 * i, 8));
    // In 128 bits, where nothing wraps around.
    const unsigned __int128 room = 16;
    const bool first_is_0 = i != 0 || sidecar.offsets[0] == 0;
    const bool ascends = i == 0 || sidecar.offsets[i] >= sidecar.offsets[i - 1] + room;
    if (!first_is_0 || !ascends || sidecar.offsets[i] + room > sidecar.data_bytes) {
      return std::nullopt;
    }
  }
  if (*records == 0 && sidecar.data_bytes != 0) return std::nullopt;
  return sidecar;
}

std::optional<ReferenceExample> ParseExample(ByteSpan record) {
  ReferenceExample example;
  const bool whole = EachField(record, [&](const Message::Field& features) {
    if (features.type == 2 && features.number == 2) return false;  // a SequenceExample
    if (features.number != 1 || features.type != 2) return true;
    return EachField(features.bytes, [&](const Message::Field& entry) {
      return entry.number != 1 || entry.type != 2 || ParseMapEntry(entry.bytes, &example);
    });
  });
  if (!whole) return std::nullopt;
  return example;
}

}  // namespace cachecd::native
