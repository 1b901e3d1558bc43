// What drivers of the core share: conditions that end the process, a folder, random numbers.

#ifndef CACHECD_TESTS_CORE_NATIVE_HARNESS_H_
#define CACHECD_TESTS_CORE_NATIVE_HARNESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"

namespace cachecd::native {

// Ends the process, by a signal that fuzzers and sanitizers report, unless the condition holds.
#define EXPECT(condition) \
  ((condition) ? (void)0 : ::cachecd::native::Fail(#condition, __FILE__, __LINE__))

[[noreturn]] void Fail(const char* condition, const char* file, int line);

using Bytes = std::vector<uint8_t>;

inline ByteSpan Span(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

void WriteFile(const std::string& path, ByteSpan bytes);
Bytes ReadFile(const std::string& path);

// A path in a folder of this process under $TMPDIR, which is removed when the process ends by
// itself.
std::string ScratchPath(const std::string& name);

// SplitMix64. Cheap to make from a seed, and the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // Below `limit`, which must not be 0.
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  bool OneIn(uint64_t times) { return Below(times) == 0; }

 private:
  uint64_t state_;
};

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_NATIVE_HARNESS_H_
