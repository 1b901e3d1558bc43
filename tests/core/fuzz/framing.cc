// Any bytes as a TFRecord file: walked, read, carried over.

#include <algorithm>
#include <string>

#include "../native/harness.h"
#include "errors.h"
#include "fuzzer.h"
#include "memory.h"
#include "mutate.h"
#include "reference.h"
#include "sidecar.h"
#include "tfrecord.h"
#include "writer.h"

namespace cachecd::native {
namespace {

// What buffers of fixed size take, and how often the input may be in memory.
constexpr size_t kFixed = 4 << 20;  // a shard writer gathers 2 MiB
constexpr size_t kTimes = 16;

void ScanAgrees(const std::string& path, const Bytes& file, bool payloads) {
  const Walked expected = WalkFrames(file, payloads);
  std::vector<uint64_t> offsets;
  std::optional<uint64_t> fault;
  try {
    ScanFile(path, payloads, &offsets);
  } catch (const CorruptRecord& error) {
    EXPECT(error.path == path);
    fault = error.offset;
  }
  EXPECT(offsets == expected.offsets);
  EXPECT(fault == expected.fault);
}

void RecordAgrees(const std::string& path, const Bytes& file, uint64_t offset) {
  const std::optional<uint64_t> length = FrameAt(file, offset);
  try {
    const std::string payload = ReadRecord(path, offset);
    EXPECT(length && payload.size() == *length);
    EXPECT(std::equal(payload.begin(), payload.end(), file.begin() + offset + kFrameHeader,
                      [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; }));
  } catch (const CorruptRecord& error) {
    EXPECT(!length && error.offset == offset);
  }
}

// The whole file as one frame.
void FrameAgrees(const Bytes& frame) {
  ByteSpan payload;
  std::string why;
  const bool opened = OpenFrame(Span(frame), &payload, &why);
  const Walked walked = WalkFrames(frame, false);
  EXPECT(opened == (walked.offsets.size() == 1 && !walked.fault));
  EXPECT(why.empty() == opened);
  if (!opened) return;
  EXPECT(payload.data == frame.data() + kFrameHeader);
  EXPECT(payload.size == frame.size() - kFrameOverhead);
  EXPECT(CheckPayload(payload, payload.end()).empty() == FrameAt(frame, 0).has_value());
}

uint64_t Blocks(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Carries the frames over into a shard: those before the first fault, verbatim.
void CarryAgrees(const Bytes& file, uint64_t capacity) {
  const std::string path = ScratchPath("shard");
  const std::vector<uint64_t> offsets = WalkFrames(file, true).offsets;
  ShardWriter writer(path, capacity);
  ShardWriter::Carried carried;
  try {
    carried = writer.AppendFrames(Span(file), 7, 3, "frames", 1000);
    EXPECT(writer.num_records() == carried.records && writer.num_bytes() == carried.consumed);
  } catch (const CorruptRecord& error) {
    EXPECT(error.offset == 1000 + writer.num_bytes());
    EXPECT(!FrameAt(file, writer.num_bytes()));
    EXPECT(writer.num_records() == offsets.size());
  }
  EXPECT(writer.num_records() <= offsets.size());
  EXPECT(carried.full || writer.num_records() == offsets.size());
  const ShardWriter::Sealed sealed = writer.Finish("{}");
  EXPECT(capacity == 0 || Blocks(sealed.data_bytes) + Blocks(sealed.sidecar_bytes) <= capacity);

  EXPECT(ReadFile(path) == Bytes(file.begin(), file.begin() + sealed.data_bytes));
  const SidecarContents sidecar = ReadSidecar(SidecarPath(path));
  EXPECT(sidecar.data_bytes == sealed.data_bytes);
  EXPECT(sidecar.offsets.size() == sidecar.ordinals.size());
  for (size_t i = 0; i < sidecar.offsets.size(); ++i) {
    EXPECT(sidecar.offsets[i] == offsets[i] && sidecar.ordinals[i] == 3 + i);
  }
}

// Payloads appended one by one give the same frames.
void AppendAgrees(const Bytes& file) {
  const std::string path = ScratchPath("shard");
  const std::vector<uint64_t> offsets = WalkFrames(file, true).offsets;
  if (offsets.empty()) return;
  ShardWriter writer(path, 0);
  uint64_t end = 0;
  for (const uint64_t offset : offsets) {
    const uint64_t length = *FrameAt(file, offset);
    EXPECT(writer.Append({file.data() + offset + kFrameHeader, length}, 0, 0));
    end = offset + length + kFrameOverhead;
  }
  writer.Finish("");
  EXPECT(ReadFile(path) == Bytes(file.begin(), file.begin() + end));
}

void RemoveShard() {
  std::remove(ScratchPath("shard").c_str());
  std::remove(SidecarPath(ScratchPath("shard")).c_str());
}

}  // namespace
}  // namespace cachecd::native

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachecd::native;
  const MemoryWatch watch;
  const Bytes file(data, data + size);
  const std::string path = ScratchPath("file");
  WriteFile(path, Span(file));

  ScanAgrees(path, file, true);
  ScanAgrees(path, file, false);
  FrameAgrees(file);
  for (const uint64_t offset : WalkFrames(file, false).offsets) {
    RecordAgrees(path, file, offset);
    RecordAgrees(path, file, offset + 1);
  }
  RecordAgrees(path, file, size);
  RecordAgrees(path, file, UINT64_MAX - 3);
  // Without a limit, and with one that a few blocks reach.
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{3 * 4096}}) {
    RemoveShard();
    CarryAgrees(file, capacity);
  }
  RemoveShard();
  AppendAgrees(file);
  RemoveShard();
  EXPECT(watch.Peak() <= kFixed + kTimes * size);
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  using namespace cachecd::native;
  return MutateAndMend(data, size, most, seed, MendFrames);
}
