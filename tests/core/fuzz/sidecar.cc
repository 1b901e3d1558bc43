// Any bytes as a sidecar: what is accepted is what the format says, and is written again the same.

#include "sidecar.h"

#include <cstdio>
#include <optional>
#include <string>

#include "../native/harness.h"
#include "errors.h"
#include "fuzzer.h"
#include "memory.h"
#include "mutate.h"
#include "reference.h"

namespace cachecd::native {
namespace {

constexpr size_t kFixed = 64 << 10;
constexpr size_t kTimes = 16;

void FileAgrees(const Bytes& file) {
  const std::string path = ScratchPath("sidecar");
  const std::string again = ScratchPath("again");
  WriteFile(path, Span(file));
  const std::optional<ReferenceSidecar> expected = ParseSidecar(file, true);
  try {
    const SidecarContents found = ReadSidecar(path);
    EXPECT(expected.has_value());
    EXPECT(found.meta == expected->meta && found.data_bytes == expected->data_bytes);
    EXPECT(found.offsets == expected->offsets && found.indices == expected->indices);
    EXPECT(found.ordinals == expected->ordinals && found.units.size() == expected->units.size());
    for (size_t i = 0; i < found.units.size(); ++i) {
      const SidecarUnit& unit = found.units[i];
      const ReferenceUnit& other = expected->units[i];
      EXPECT(unit.number == other.number && unit.begin == other.begin);
      EXPECT(unit.key == other.key && unit.etag == other.etag);
    }
    EXPECT(WriteSidecar(again, found) == file.size());
    EXPECT(ReadFile(again) == file);
    std::remove(again.c_str());
  } catch (const CorruptSidecar& error) {
    EXPECT(!expected && error.path == path && !error.why.empty());
  }
}

// A view checks only what it is asked for.
void ViewAgrees(const Bytes& file) {
  const std::optional<ReferenceSidecar> expected = ParseSidecar(file, false);
  try {
    const SidecarView view("sidecar", Span(file));
    const ByteSpan offsets = view.Offsets();
    EXPECT(expected.has_value());
    EXPECT(view.records() == expected->offsets.size());
    EXPECT(view.data_bytes() == expected->data_bytes);
    EXPECT(offsets.size == 8 * view.records());
    for (size_t i = 0; i < view.records(); ++i) {
      EXPECT(LoadU64(offsets.data + 8 * i) == expected->offsets[i]);
    }
  } catch (const CorruptSidecar&) {
    EXPECT(!expected);
  }
}

}  // namespace
}  // namespace cachecd::native

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachecd::native;
  const MemoryWatch watch;
  const Bytes file(data, data + size);
  FileAgrees(file);
  ViewAgrees(file);
  EXPECT(watch.Peak() <= kFixed + kTimes * size);
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  using namespace cachecd::native;
  return MutateAndMend(data, size, most, seed, MendSidecar);
}
