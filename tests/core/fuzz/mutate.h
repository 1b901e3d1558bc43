// Mutations that keep checksums and enclosing lengths right, so that what lies behind them is
// reached. Each leaves some wrong now and then.

#ifndef CACHECD_TESTS_CORE_FUZZ_MUTATE_H_
#define CACHECD_TESTS_CORE_FUZZ_MUTATE_H_

#include "../native/harness.h"
#include "fuzzer.h"

namespace cachecd::native {

// The fuzzer's own mutation, as far as `most` bytes.
void MutateBytes(Bytes* bytes, size_t most);

// The CRCs of frames, and a last length that exceeds the file.
void MendFrames(Bytes* file, Random* chance);

// The CRCs of a sidecar, and its number of records. Its digest stays: no reader looks at it.
void MendSidecar(Bytes* file, Random* chance);

// Alters a message of protocol buffers somewhere within, and the lengths around that.
void MutateMessage(Bytes* message, size_t most, Random* chance);

// A whole mutation: of the bytes, and three times in four mended so that it leads further.
size_t MutateAndMend(uint8_t* data, size_t size, size_t most, unsigned int seed,
                     void (*mend)(Bytes*, Random*));

// Writes `bytes`, or as much as there is room for, over an input; returns its new size.
size_t Replace(const Bytes& bytes, uint8_t* data, size_t most);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_MUTATE_H_
