// What an input of the target `reader` is: files, how they are read, and what they hold.

#ifndef CACHECD_TESTS_CORE_FUZZ_READER_SETTING_H_
#define CACHECD_TESTS_CORE_FUZZ_READER_SETTING_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "../native/harness.h"
#include "columns_check.h"
#include "reader.h"
#include "reference.h"

namespace cachecd::native {

//     input := u8 options  u8 batches  u16 sidecar_bytes  data sidecar
constexpr size_t kHead = 4;

struct Setting {
  // Of at least kHead bytes.
  explicit Setting(const Bytes& input);

  // The input again.
  Bytes Joined() const;

  const std::vector<FeatureSpec>& specs() const;
  ReaderOptions options() const;

  // Of half the file: it is only counted first, and opened when a record of it is wanted.
  uint64_t window() const { return windowed ? data.size() / 2 + 1 : 0; }
  bool padded() const { return last == Last::kPadded; }
  bool counted_first() const { return windowed && data.size() > window(); }

  bool shuffle, replace, has_sidecar, converted, restart, windowed;
  Last last;
  uint64_t threads, world, rank, batch_size;
  Bytes data, sidecar;
};

// Makes what lives as long as the process, before anybody watches the memory that an input takes.
void PrepareSpecs();

// What the files hold, by the reference.
struct Expected {
  // The setting must outlive it.
  explicit Expected(const Setting& setting);

  std::optional<ReferenceExample> Parse(size_t record) const;

  const Bytes& data;
  bool refused;        // the files cannot be opened so
  bool refused_later;  // but only when a record is wanted
  bool whole;          // no more is damaged than single records
  std::vector<uint64_t> begins;
  std::vector<bool> good;
};

// What a record counts as having.
ReferenceFeature FeatureOf(const ReferenceExample& example, const FeatureSpec& spec);

bool FitsAll(const Setting& setting, const std::optional<ReferenceExample>& example);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_READER_SETTING_H_
