#include "sidecar.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "crc32c.h"
#include "errors.h"
#include "file.h"
#include "mix.h"

namespace cachecd {
namespace {

constexpr char kMagic[8] = {'C', 'A', 'C', 'H', 'E', 'C', 'D', 'X'};
constexpr uint64_t kMinimumFrame = 16;

// Returns "" if these u64 can be the frames' offsets in a file of `data_bytes`, else the reason.
std::string CheckOffsets(ByteSpan offsets, uint64_t data_bytes) {
  const size_t records = offsets.size / sizeof(uint64_t);
  uint64_t least = 0;
  for (size_t i = 0; i < records; ++i) {
    const uint64_t offset = LoadU64(offsets.data + sizeof(uint64_t) * i);
    const bool fits = i == 0 ? offset == 0 : offset >= least;
    if (!fits || offset > data_bytes || data_bytes - offset < kMinimumFrame) {
      return "offset " + std::to_string(offset) + " of record " + std::to_string(i) +
             " is out of place";
    }
    least = offset + kMinimumFrame;
  }
  return records == 0 && data_bytes != 0 ? "no records in a file that is not empty" : "";
}

// Throws CorruptSidecar if the CRC behind the section does not match.
void CheckCrc(const std::string& path, const char* name, ByteSpan section) {
  const uint32_t found = LoadU32(section.end());
  const uint32_t expected = MaskedCrc32c(section.data, section.size);
  if (found == expected) return;
  char why[80];
  std::snprintf(why, sizeof why, "%s CRC is 0x%08x, expected 0x%08x", name, found, expected);
  throw CorruptSidecar(path, why);
}

void VerifyOffsets(const std::string& path, ByteSpan section, uint64_t data_bytes) {
  CheckCrc(path, "offsets", section);
  const std::string why = CheckOffsets(section, data_bytes);
  if (!why.empty()) throw CorruptSidecar(path, why);
}

// FNV-1a, 64 bits.
class Fnv {
 public:
  void Add(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3u;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

// A byte that UTF-8 never contains ends key and ETag, so that no two units give the same bytes.
uint64_t UnitHash(const SidecarUnit& unit) {
  constexpr uint8_t kEnd = 0xff;
  Fnv fnv;
  fnv.Add(unit.key.data(), unit.key.size());
  fnv.Add(&kEnd, 1);
  fnv.Add(unit.etag.data(), unit.etag.size());
  fnv.Add(&kEnd, 1);
  fnv.Add(&unit.begin, sizeof unit.begin);
  return Mix(fnv.hash());
}

std::string UnitsBytes(const std::vector<SidecarUnit>& units) {
  std::string bytes;
  for (const SidecarUnit& unit : units) {
    uint8_t head[kSidecarPerUnit];
    StoreU64(head, unit.number);
    StoreU64(head + 8, unit.begin);
    StoreU32(head + 16, static_cast<uint32_t>(unit.key.size()));
    StoreU32(head + 20, static_cast<uint32_t>(unit.etag.size()));
    bytes.append(reinterpret_cast<const char*>(head), sizeof head);
    bytes += unit.key;
    bytes += unit.etag;
  }
  return bytes;
}

std::string CheckIndices(ByteSpan indices, uint64_t units) {
  for (const uint8_t* at = indices.begin(); at != indices.end(); at += sizeof(uint32_t)) {
    if (LoadU32(at) >= units) {
      return "a record has unit " + std::to_string(LoadU32(at)) + " of " + std::to_string(units);
    }
  }
  return "";
}

template <typename T>
std::vector<T> Copy(ByteSpan section) {
  std::vector<T> values(section.size / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), section.data, section.size);
  return values;
}

}  // namespace

uint64_t SidecarDigest(const SidecarContents& contents) {
  std::vector<uint64_t> hashes;
  hashes.reserve(contents.units.size());
  for (const SidecarUnit& unit : contents.units) hashes.push_back(UnitHash(unit));
  uint64_t sum = 0;
  for (size_t i = 0; i < contents.indices.size(); ++i) {
    sum += Mix(hashes[contents.indices[i]] + kGolden * (uint64_t{contents.ordinals[i]} + 1));
  }
  return sum;
}

SidecarHeader CheckSidecarHeader(const std::string& path, ByteSpan start, uint64_t size) {
  const auto fail = [&path](const std::string& why) { throw CorruptSidecar(path, why); };
  if (start.size < kSidecarHeader || size < kSidecarOverhead) {
    fail("it has " + std::to_string(size) + " bytes, expected at least " +
         std::to_string(kSidecarOverhead));
  }
  if (std::memcmp(start.data, kMagic, sizeof kMagic) != 0) fail("it does not start with CACHECDX");
  CheckCrc(path, "header", {start.data, kSidecarHeader - 4});
  const uint32_t version = LoadU32(start.data + 8);
  if (version != kSidecarVersion) {
    fail("version " + std::to_string(version) + ", expected " + std::to_string(kSidecarVersion) +
         ": upgrade cachecd-client");
  }
  const SidecarHeader header{LoadU32(start.data + 12), LoadU64(start.data + 16),
                             LoadU64(start.data + 24), LoadU64(start.data + 32),
                             LoadU32(start.data + 40), LoadU32(start.data + 44)};
  // The first comparison prevents an overflow in the second.
  if (header.records > size / kSidecarPerRecord ||
      SidecarBytes(header.records, header.units_bytes, header.meta_bytes) != size ||
      header.units > header.units_bytes / kSidecarPerUnit) {
    fail("it has " + std::to_string(size) + " bytes, not those of " +
         std::to_string(header.records) + " records, " + std::to_string(header.units) +
         " units and " + std::to_string(header.meta_bytes) + " bytes of meta");
  }
  return header;
}

namespace {

SidecarHeader ReadHeader(const File& file) {
  uint8_t start[kSidecarHeader];
  const size_t held = file.ReadAt(start, sizeof start, 0);
  return CheckSidecarHeader(file.path(), {start, held}, file.Size());
}

RecordOffsets ReadOffsets(const std::string& path) {
  const File file = File::Open(path);
  const SidecarHeader header = ReadHeader(file);
  RecordOffsets found{std::vector<uint64_t>(header.records + 1), header.data_bytes};
  auto* bytes = reinterpret_cast<uint8_t*>(found.offsets.data());
  const ByteSpan section{bytes, header.records * sizeof(uint64_t)};
  const size_t expected = section.size + sizeof(uint32_t);  // plus its CRC
  const uint64_t start = kSidecarHeader + header.meta_bytes + 4 + header.units_bytes + 4;
  const size_t held = file.ReadAt(bytes, expected, start);
  if (held < expected) throw CorruptSidecar(path, "cut short while it was read");
  VerifyOffsets(path, section, header.data_bytes);
  found.offsets.pop_back();
  return found;
}

SidecarHead ReadHead(const std::string& path) {
  const File file = File::Open(path);
  const SidecarHeader header = ReadHeader(file);
  std::string meta(header.meta_bytes + sizeof(uint32_t), '\0');  // plus its CRC
  if (file.ReadAt(meta.data(), meta.size(), kSidecarHeader) < meta.size()) {
    throw CorruptSidecar(path, "cut short while it was read");
  }
  CheckCrc(path, "meta", {reinterpret_cast<const uint8_t*>(meta.data()), header.meta_bytes});
  meta.resize(header.meta_bytes);
  return {header, std::move(meta)};
}

// Returns read(). Throws CorruptSidecar if the disk fails (EIO), because for finding records, an
// unreadable sidecar is as useless as a damaged one.
template <typename Read>
auto GivenBack(const std::string& path, Read read) -> decltype(read()) {
  try {
    return read();
  } catch (const IoError& error) {
    if (error.code != EIO) throw;
    throw CorruptSidecar(path, std::strerror(EIO));
  }
}

}  // namespace

SidecarHeader ReadSidecarHeader(const std::string& path) {
  return GivenBack(path, [&path] { return ReadHeader(File::Open(path)); });
}

SidecarHead ReadSidecarHead(const std::string& path) {
  return GivenBack(path, [&path] { return ReadHead(path); });
}

RecordOffsets ReadSidecarOffsets(const std::string& path) {
  return GivenBack(path, [&path] { return ReadOffsets(path); });
}

SidecarView::SidecarView(std::string path, ByteSpan bytes)
    : path_(std::move(path)),
      bytes_(bytes),
      header_(CheckSidecarHeader(path_, bytes, bytes.size)) {}

ByteSpan SidecarView::Section(const char* name, uint64_t start, uint64_t sections,
                              uint64_t size) const {
  const ByteSpan section{bytes_.data + kSidecarHeader + start + sections * sizeof(uint32_t), size};
  CheckCrc(path_, name, section);
  return section;
}

ByteSpan SidecarView::Meta() const { return Section("meta", 0, 0, header_.meta_bytes); }

std::vector<SidecarUnit> SidecarView::Units() const {
  const ByteSpan section = Section("units", header_.meta_bytes, 1, header_.units_bytes);
  std::vector<SidecarUnit> units;
  units.reserve(header_.units);
  const auto take = [](const uint8_t* from, uint64_t size) {
    return std::string(reinterpret_cast<const char*>(from), size);
  };
  const uint8_t* at = section.begin();
  for (uint32_t i = 0; i < header_.units; ++i) {
    const auto left = static_cast<uint64_t>(section.end() - at);
    const uint64_t key = left < kSidecarPerUnit ? 0 : LoadU32(at + 16);
    const uint64_t etag = left < kSidecarPerUnit ? 0 : LoadU32(at + 20);
    if (left < kSidecarPerUnit + key + etag) break;
    const uint8_t* text = at + kSidecarPerUnit;
    units.push_back({LoadU64(at), LoadU64(at + 8), take(text, key), take(text + key, etag)});
    at = text + key + etag;
  }
  if (units.size() != header_.units || at != section.end()) {
    throw CorruptSidecar(path_, "its units do not end where the section does");
  }
  return units;
}

ByteSpan SidecarView::Offsets() const {
  const ByteSpan section =
      Section("offsets", header_.meta_bytes + header_.units_bytes, 2, header_.records * 8);
  const std::string why = CheckOffsets(section, header_.data_bytes);
  if (!why.empty()) throw CorruptSidecar(path_, why);
  return section;
}

ByteSpan SidecarView::Indices() const {
  const ByteSpan section =
      Section("indices", header_.meta_bytes + header_.units_bytes + header_.records * 8, 3,
              header_.records * 4);
  const std::string why = CheckIndices(section, header_.units);
  if (!why.empty()) throw CorruptSidecar(path_, why);
  return section;
}

ByteSpan SidecarView::Ordinals() const {
  return Section("ordinals", header_.meta_bytes + header_.units_bytes + header_.records * 12, 4,
                 header_.records * 4);
}

SidecarContents ReadSidecar(const std::string& path) {
  const File file = File::Open(path);
  ReadHeader(file);  // before memory is allocated: the file may be foreign and of any size
  std::vector<uint8_t> bytes(file.Size());
  bytes.resize(file.ReadAt(bytes.data(), bytes.size(), 0));
  const SidecarView view(path, {bytes.data(), bytes.size()});
  const ByteSpan meta = view.Meta();
  SidecarContents contents;
  contents.meta.assign(reinterpret_cast<const char*>(meta.data), meta.size);
  contents.data_bytes = view.data_bytes();
  contents.units = view.Units();
  contents.offsets = Copy<uint64_t>(view.Offsets());
  contents.indices = Copy<uint32_t>(view.Indices());
  contents.ordinals = Copy<uint32_t>(view.Ordinals());
  if (SidecarDigest(contents) != view.digest()) {
    throw CorruptSidecar(path, "its digest is not that of its records");
  }
  return contents;
}

uint64_t WriteSidecar(const std::string& path, const SidecarContents& contents) {
  const auto span = [](const auto& values) {
    return ByteSpan{reinterpret_cast<const uint8_t*>(values.data()),
                    values.size() * sizeof(values[0])};
  };
  std::string why = CheckOffsets(span(contents.offsets), contents.data_bytes);
  if (why.empty()) why = CheckIndices(span(contents.indices), contents.units.size());
  if (!why.empty()) throw std::invalid_argument(path + ": " + why);
  const std::string units = UnitsBytes(contents.units);
  if (contents.meta.size() > UINT32_MAX || units.size() > UINT32_MAX) {
    throw std::invalid_argument(path + ": meta or units beyond 4 GiB");
  }

  uint8_t header[kSidecarHeader];
  std::memcpy(header, kMagic, sizeof kMagic);
  StoreU32(header + 8, kSidecarVersion);
  StoreU32(header + 12, static_cast<uint32_t>(contents.meta.size()));
  StoreU64(header + 16, contents.offsets.size());
  StoreU64(header + 24, contents.data_bytes);
  StoreU64(header + 32, SidecarDigest(contents));
  StoreU32(header + 40, static_cast<uint32_t>(contents.units.size()));
  StoreU32(header + 44, static_cast<uint32_t>(units.size()));

  const ByteSpan sections[] = {
      {header, kSidecarHeader - 4}, span(contents.meta),    span(units),
      span(contents.offsets),       span(contents.indices), span(contents.ordinals),
  };
  constexpr size_t kSections = sizeof sections / sizeof *sections;
  uint32_t crcs[kSections];
  iovec parts[2 * kSections];
  for (size_t i = 0; i < kSections; ++i) {
    crcs[i] = MaskedCrc32c(sections[i].data, sections[i].size);
    parts[2 * i] = {const_cast<uint8_t*>(sections[i].data), sections[i].size};
    parts[2 * i + 1] = {&crcs[i], sizeof crcs[i]};
  }

  File file = File::Create(path);
  try {
    file.Write(parts, 2 * kSections);
    file.Sync();
    file.Close();
  } catch (const IoError&) {
    unlink(path.c_str());
    throw;
  }
  return SidecarBytes(contents.offsets.size(), units.size(), contents.meta.size());
}

}  // namespace cachecd
