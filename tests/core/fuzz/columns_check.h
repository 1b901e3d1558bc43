// Whether columns hold what a record says.

#ifndef CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_
#define CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_

#include "columns.h"
#include "reference.h"

namespace cachecd::native {

// What a record with this feature, or without it (null), counts as having: the spec's default if
// there is nothing else.
ReferenceFeature Resolved(const FeatureSpec& spec, const ReferenceFeature* feature);

// Whether a record that has this fits the spec.
bool Fits(const FeatureSpec& spec, const ReferenceFeature& resolved);

// How many columns a feature becomes.
inline size_t NumColumns(const FeatureSpec& spec) { return spec.options.pad ? 2 : 1; }

// Names, shapes and buffers agree, and ends ascend, for `rows` rows of the feature's columns.
void ExpectSound(const Column* columns, const FeatureSpec& spec, uint64_t rows);

// A row of sound columns is the feature, which fits, as the spec delivers it.
void ExpectRow(const Column* columns, const FeatureSpec& spec, uint64_t row,
               const ReferenceFeature& resolved);

// A row of sound columns is that of no record.
void ExpectEmptyRow(const Column* columns, const FeatureSpec& spec, uint64_t row);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_
