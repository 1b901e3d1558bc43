// The formats once more, from their descriptions, sharing no code with the core: slow, plain, and
// stricter where the core may be lenient. What both accept must mean the same.

#ifndef CACHECD_TESTS_CORE_FUZZ_REFERENCE_H_
#define CACHECD_TESTS_CORE_FUZZ_REFERENCE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../native/harness.h"
#include "example.h"

namespace cachecd::native {

uint32_t ReferenceCrc(const uint8_t* data, size_t size);  // masked

// A frame from `offset` on; the payload's size, if it is all there and both CRCs are right.
std::optional<uint64_t> FrameAt(const Bytes& file, uint64_t offset);

struct Walked {
  std::vector<uint64_t> offsets;
  std::optional<uint64_t> fault;  // where the first frame starts that is none
};

// The frames of a file up to its end or the first that is wrong; `payloads`: checks theirs too.
Walked WalkFrames(const Bytes& file, bool payloads);

struct ReferenceSidecar {
  uint64_t data_bytes;
  std::vector<uint64_t> offsets;
};

// How many records a sidecar has, by its header and its size; none if these are not of one.
std::optional<uint64_t> SidecarRecords(const Bytes& file);

// None if it is not one. Only the header and the offsets count, as for a reader.
std::optional<ReferenceSidecar> ParseSidecar(const Bytes& file);

struct ReferenceFeature {
  Kind kind = Kind::kNone;
  bool has_value = false;  // its map entry has one, be it empty; no part of what it is
  std::vector<std::string> bytes;
  std::vector<uint32_t> floats;  // their bits: a NaN equals itself
  std::vector<int64_t> ints;

  size_t count() const { return bytes.size() + floats.size() + ints.size(); }
  bool operator==(const ReferenceFeature& other) const {
    return kind == other.kind && bytes == other.bytes && floats == other.floats &&
           ints == other.ints;
  }
};

using ReferenceExample = std::map<std::string, ReferenceFeature>;

// None if any part does not parse, also one that a reader may skip.
std::optional<ReferenceExample> ParseExample(ByteSpan record);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_REFERENCE_H_
