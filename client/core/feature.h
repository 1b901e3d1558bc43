// What a feature of every record is, and as what it is delivered.

#ifndef CACHECD_CORE_FEATURE_H_
#define CACHECD_CORE_FEATURE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "element.h"
#include "example.h"
#include "image.h"

namespace cachecd {

// What users ask to be made of a feature on the way; by default nothing.
struct FeatureOptions {
  std::string name;             // of its column, else the feature's
  std::string cast;             // the dtype, else the one that is stored (float32 if one_hot)
  uint64_t one_hot = 0;         // classes, for each of which a scalar integer's row has a number
  std::optional<uint64_t> pad;  // length of the dense row that a ragged list of numbers becomes
  std::string pad_value;        // one element as it is delivered; if pad
  std::string fallback;         // a serialized Example that lends the feature to records without
  std::optional<ImageOptions> image;  // makes pixels of a picture, encoded or stored as pixels
};

struct FeatureSpec {
  std::string name;

  // As it is stored.
  Kind kind = Kind::kNone;
  bool raw = false;     // one bytes value that holds a little-endian array
  bool ragged = false;  // a list of any length; else of the product of `shape`
  Element element = Element::kUint8;
  std::vector<int64_t> shape;

  // As it is delivered; `delivered` and the options agree.
  Element delivered = Element::kUint8;
  FeatureOptions options;

  bool is_bytes() const { return kind == Kind::kBytes && !raw && !options.image; }
  bool is_dense() const { return !is_bytes() && (!ragged || options.pad); }
  // The names of its columns: of the one of its values, and if padded of their numbers.
  std::vector<std::string> columns() const;
  // Whether the rows' height and width follow from the pictures.
  bool is_unsized() const { return options.image && options.image->height == 0; }
  // The shape of one row as it is delivered, if dense; 0 for what is_unsized.
  std::vector<int64_t> row_shape() const;

  // The spec of a feature as users write it: dtype a NumPy name, "bfloat16" or "bytes";
  // SchemaMismatch if the parts do not go together. Whether the fallback fits is not looked at
  // here: ColumnBuilder::CheckFallback.
  static FeatureSpec Make(std::string name, const std::string& kind, const std::string& dtype,
                          bool ragged, std::vector<int64_t> shape, bool raw,
                          FeatureOptions options = {});
};

// The product, as a number of elements or bytes to allocate; std::bad_alloc if nothing can be so
// large.
size_t Multiply(uint64_t a, uint64_t b);
size_t Multiply(const std::vector<int64_t>& extents);

// A SchemaMismatch that names the feature.
[[noreturn]] void RefuseFeature(const std::string& name, const std::string& why);

}  // namespace cachecd

#endif  // CACHECD_CORE_FEATURE_H_
