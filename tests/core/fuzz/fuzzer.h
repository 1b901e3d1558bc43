// The interface of libFuzzer, which driver.cc has too: targets are built with either.

#ifndef CACHECD_TESTS_CORE_FUZZ_FUZZER_H_
#define CACHECD_TESTS_CORE_FUZZ_FUZZER_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// Of the target: runs one input; returns 0. What must not be ends the process.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Of the target: alters an input, in place, so that it gets past checksums; returns its new size.
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed);

// Of the fuzzer: alters bytes that it knows nothing of.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
}

#endif  // CACHECD_TESTS_CORE_FUZZ_FUZZER_H_
