#include "mutate.h"

#include <algorithm>
#include <cstring>

#include "reference.h"

namespace cachecd::native {
namespace {

// A checksum is mended all but so often.
constexpr uint64_t kLeftWrong = 12;

void MendCrc(Bytes* file, uint64_t at, uint64_t size, Random* chance) {
  if (chance->OneIn(kLeftWrong)) return;
  StoreU32(file->data() + at + size, ReferenceCrc(file->data() + at, size));
}

// A varint and where it ends; false if there is none.
bool ReadVarint(const Bytes& bytes, size_t* at, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *at < bytes.size(); shift += 7) {
    const uint8_t byte = bytes[(*at)++];
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

void AppendVarint(uint64_t value, Bytes* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<uint8_t>(value | 0x80));
  to->push_back(static_cast<uint8_t>(value));
}

struct Delimited {
  size_t tag;
  size_t begin;  // of its content
  size_t end;
};

// The length-delimited fields of a message, as far as it parses.
std::vector<Delimited> DelimitedFields(const Bytes& message) {
  std::vector<Delimited> found;
  size_t at = 0;
  while (at < message.size()) {
    const size_t tag_at = at;
    uint64_t tag, value;
    if (!ReadVarint(message, &at, &tag)) break;
    const uint64_t left = message.size() - at;
    if ((tag & 7) == 0) {
      if (!ReadVarint(message, &at, &value)) break;
    } else if ((tag & 7) == 2) {
      if (!ReadVarint(message, &at, &value) || value > message.size() - at) break;
      found.push_back({tag_at, at, at + static_cast<size_t>(value)});
      at += static_cast<size_t>(value);
    } else if (((tag & 7) == 1 && left >= 8) || ((tag & 7) == 5 && left >= 4)) {
      at += (tag & 7) == 1 ? 8 : 4;
    } else {
      break;
    }
  }
  return found;
}

}  // namespace

void MutateBytes(Bytes* bytes, size_t most) {
  const size_t size = std::min(bytes->size(), most);
  bytes->resize(most);
  bytes->resize(LLVMFuzzerMutate(bytes->data(), size, most));
}

void MendFrames(Bytes* file, Random* chance) {
  for (uint64_t offset = 0; file->size() - offset >= 16;) {
    const uint64_t left = file->size() - offset - 16;
    uint64_t length = LoadU64(file->data() + offset);
    const bool fits = length <= left;
    if (!fits && !chance->OneIn(kLeftWrong)) {
      length = left;
      StoreU64(file->data() + offset, length);
    }
    MendCrc(file, offset, 8, chance);
    if (length > left) return;
    MendCrc(file, offset + 12, length, chance);
    offset += length + 16;
  }
}

void MendSidecar(Bytes* file, Random* chance) {
  if (file->size() < 72) return;
  const uint64_t room = file->size() - 72;
  if (!chance->OneIn(kLeftWrong)) {
    // As many bytes of units and as many records as there is room for, and what is left is meta.
    const uint64_t units = std::min<uint64_t>(LoadU32(file->data() + 44), room);
    const uint64_t most = (room - units) / 16;
    const uint64_t records = std::min(LoadU64(file->data() + 16), most);
    StoreU32(file->data() + 44, static_cast<uint32_t>(units));
    StoreU64(file->data() + 16, records);
    StoreU32(file->data() + 12, static_cast<uint32_t>(room - units - 16 * records));
  }
  MendCrc(file, 0, 48, chance);
  const uint64_t meta = LoadU32(file->data() + 12);
  const uint64_t records = LoadU64(file->data() + 16);
  const uint64_t units = LoadU32(file->data() + 44);
  if (records > room / 16 || meta + units != room - 16 * records) return;
  MendCrc(file, 52, meta, chance);
  MendCrc(file, 56 + meta, units, chance);
  MendCrc(file, 60 + meta + units, 8 * records, chance);
  MendCrc(file, 64 + meta + units + 8 * records, 4 * records, chance);
  MendCrc(file, 68 + meta + units + 12 * records, 4 * records, chance);
}

void MutateMessage(Bytes* message, size_t most, Random* chance) {
  const std::vector<Delimited> fields = DelimitedFields(*message);
  if (fields.empty() || chance->OneIn(5)) {
    MutateBytes(message, most);
    return;
  }
  const Delimited field = fields[chance->Below(fields.size())];
  const auto content = [&](const Delimited& of) {
    return Bytes(message->begin() + static_cast<ptrdiff_t>(of.begin),
                 message->begin() + static_cast<ptrdiff_t>(of.end));
  };
  Bytes altered(message->begin(), message->begin() + static_cast<ptrdiff_t>(field.begin));
  Bytes inner = content(field);
  if (chance->OneIn(8)) {  // what another field holds
    inner = content(fields[chance->Below(fields.size())]);
  } else {
    MutateMessage(&inner, most, chance);
  }
  // One byte of tag, as all known fields have, and the new length.
  altered.resize(field.tag + 1);
  AppendVarint(inner.size(), &altered);
  altered.insert(altered.end(), inner.begin(), inner.end());
  if (chance->OneIn(8)) {  // twice
    const Bytes again(altered.begin() + static_cast<ptrdiff_t>(field.tag), altered.end());
    altered.insert(altered.end(), again.begin(), again.end());
  }
  altered.insert(altered.end(), message->begin() + static_cast<ptrdiff_t>(field.end),
                 message->end());
  if (altered.size() <= most) *message = altered;
}

size_t MutateAndMend(uint8_t* data, size_t size, size_t most, unsigned int seed,
                     void (*mend)(Bytes*, Random*)) {
  Random chance(seed);
  Bytes bytes(data, data + size);
  MutateBytes(&bytes, most);
  if (!chance.OneIn(4)) mend(&bytes, &chance);
  return Replace(bytes, data, most);
}

size_t Replace(const Bytes& bytes, uint8_t* data, size_t most) {
  const size_t size = std::min(bytes.size(), most);
  if (size != 0) std::memcpy(data, bytes.data(), size);
  return size;
}

}  // namespace cachecd::native
