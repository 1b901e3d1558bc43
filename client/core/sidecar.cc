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

namespace cachecd {
namespace {

constexpr char kMagic[8] = {'C', 'A', 'C', 'H', 'E', 'C', 'D', 'X'};
constexpr uint64_t kMinimumFrame = 16;

// The finding if these u64 cannot be where the frames of a file of `data_bytes` start.
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

// The section's CRC follows it.
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

template <typename T>
std::vector<T> Copy(ByteSpan section) {
  std::vector<T> values(section.size / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), section.data, section.size);
  return values;
}

}  // namespace

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
                             LoadU64(start.data + 24)};
  // The first comparison keeps the second from wrapping around.
  if (header.records > size / kSidecarPerRecord ||
      SidecarBytes(header.records, header.meta_bytes) != size) {
    fail("it has " + std::to_string(size) + " bytes, not those of " +
         std::to_string(header.records) + " records and " + std::to_string(header.meta_bytes) +
         " bytes of meta");
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
  const size_t expected = section.size + sizeof(uint32_t);  // its CRC
  const size_t held = file.ReadAt(bytes, expected, kSidecarHeader + header.meta_bytes + 4);
  if (held < expected) throw CorruptSidecar(path, "cut short while it was read");
  VerifyOffsets(path, section, header.data_bytes);
  found.offsets.pop_back();
  return found;
}

// What `read` returns. To who wants records, a sidecar that the disk does not give back is as good
// as a damaged one.
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

RecordOffsets ReadSidecarOffsets(const std::string& path) {
  return GivenBack(path, [&path] { return ReadOffsets(path); });
}

SidecarView::SidecarView(std::string path, ByteSpan bytes)
    : path_(std::move(path)),
      bytes_(bytes),
      header_(CheckSidecarHeader(path_, bytes, bytes.size)) {}

ByteSpan SidecarView::Section(const char* name, uint64_t start, uint64_t size) const {
  const ByteSpan section{bytes_.data + start, size};
  CheckCrc(path_, name, section);
  return section;
}

ByteSpan SidecarView::Meta() const { return Section("meta", kSidecarHeader, header_.meta_bytes); }

ByteSpan SidecarView::Offsets() const {
  const ByteSpan section{bytes_.data + kSidecarHeader + header_.meta_bytes + 4,
                         header_.records * 8};
  VerifyOffsets(path_, section, header_.data_bytes);
  return section;
}

ByteSpan SidecarView::Units() const {
  return Section("units", kSidecarHeader + header_.meta_bytes + 8 + header_.records * 8,
                 header_.records * 8);
}

ByteSpan SidecarView::Ordinals() const {
  return Section("ordinals", kSidecarHeader + header_.meta_bytes + 12 + header_.records * 16,
                 header_.records * 4);
}

SidecarContents ReadSidecar(const std::string& path) {
  const File file = File::Open(path);
  ReadHeader(file);  // before memory is taken for what may be another tool's, and of any size
  std::vector<uint8_t> bytes(file.Size());
  bytes.resize(file.ReadAt(bytes.data(), bytes.size(), 0));
  const SidecarView view(path, {bytes.data(), bytes.size()});
  const ByteSpan meta = view.Meta();
  SidecarContents contents;
  contents.meta.assign(reinterpret_cast<const char*>(meta.data), meta.size);
  contents.data_bytes = view.data_bytes();
  contents.offsets = Copy<uint64_t>(view.Offsets());
  contents.units = Copy<uint64_t>(view.Units());
  contents.ordinals = Copy<uint32_t>(view.Ordinals());
  return contents;
}

uint64_t WriteSidecar(const std::string& path, const SidecarContents& contents) {
  const ByteSpan offsets{reinterpret_cast<const uint8_t*>(contents.offsets.data()),
                         contents.offsets.size() * sizeof(uint64_t)};
  const std::string why = CheckOffsets(offsets, contents.data_bytes);
  if (!why.empty()) throw std::invalid_argument(path + ": " + why);
  if (contents.meta.size() > UINT32_MAX) throw std::invalid_argument(path + ": meta beyond 4 GiB");

  uint8_t header[kSidecarHeader];
  std::memcpy(header, kMagic, sizeof kMagic);
  StoreU32(header + 8, kSidecarVersion);
  StoreU32(header + 12, static_cast<uint32_t>(contents.meta.size()));
  StoreU64(header + 16, contents.offsets.size());
  StoreU64(header + 24, contents.data_bytes);

  const std::pair<const void*, size_t> sections[] = {
      {header, kSidecarHeader - 4},
      {contents.meta.data(), contents.meta.size()},
      {contents.offsets.data(), contents.offsets.size() * sizeof(uint64_t)},
      {contents.units.data(), contents.units.size() * sizeof(uint64_t)},
      {contents.ordinals.data(), contents.ordinals.size() * sizeof(uint32_t)},
  };
  constexpr size_t kSections = sizeof sections / sizeof *sections;
  uint32_t crcs[kSections];
  iovec parts[2 * kSections];
  for (size_t i = 0; i < kSections; ++i) {
    crcs[i] = MaskedCrc32c(sections[i].first, sections[i].second);
    parts[2 * i] = {const_cast<void*>(sections[i].first), sections[i].second};
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
  return SidecarBytes(contents.offsets.size(), contents.meta.size());
}

}  // namespace cachecd
