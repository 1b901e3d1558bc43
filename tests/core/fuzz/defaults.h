// Defaults of features, as options hold them.

#ifndef CACHECD_TESTS_CORE_FUZZ_DEFAULTS_H_
#define CACHECD_TESTS_CORE_FUZZ_DEFAULTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace cachecd::native {

// A serialized Example whose one feature is a list of these.
std::string DefaultInts(const std::string& name, const std::vector<int64_t>& values);
std::string DefaultBytes(const std::string& name, const std::string& value);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_DEFAULTS_H_
