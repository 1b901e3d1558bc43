// Whether columns hold what a record says.

#ifndef CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_
#define CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_

#include "columns.h"
#include "reference.h"

namespace cachecd::native {

// Whether a record with this feature (null: without it) fits the spec.
bool Fits(const FeatureSpec& spec, const ReferenceFeature* feature);

// Shapes and buffers agree, and ends ascend, for `rows` rows.
void ExpectSound(const Column& column, const FeatureSpec& spec, uint64_t rows);

// A sound column's row is the feature; null: of zeros, or empty.
void ExpectRow(const Column& column, const FeatureSpec& spec, uint64_t row,
               const ReferenceFeature* feature);

}  // namespace cachecd::native

#endif  // CACHECD_TESTS_CORE_FUZZ_COLUMNS_CHECK_H_
