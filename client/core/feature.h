// Specifies how records store a feature and how it is delivered.

#ifndef CACHECD_CORE_FEATURE_H_
#define CACHECD_CORE_FEATURE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "element.h"
#include "example.h"
#include "image.h"

namespace cachecd {

// The conversions that users request for a feature; none by default.
struct FeatureOptions {
  std::string name;             // of the column; empty: the feature's name
  std::string cast;             // the delivered dtype; empty: the stored dtype (one_hot: float32)
  uint64_t one_hot = 0;         // classes: a scalar integer becomes a row of one number per class
  std::optional<uint64_t> pad;  // length of the dense row that a ragged list of numbers becomes
  std::string pad_value;        // one delivered element; if pad
  std::string fallback;         // a serialized Example with the feature for records that lack it
  bool optional = false;        // for RecordCheck: records may lack the feature
  std::optional<ImageOptions> image;  // decodes a picture, or converts stored pixels
  bool count_zeros = false;  // a dense feature: Batch.zeros has the number of its zero elements
};

struct FeatureSpec {
  std::string name;

  // How records store the feature.
  Kind kind = Kind::kNone;
  bool raw = false;     // one bytes value that holds a little-endian array, or a ragged list
  bool ragged = false;  // a list of any length; else its length is the product of `shape`
  Element element = Element::kUint8;
  std::vector<int64_t> shape;

  // How the feature is delivered. `delivered` is the result of the options.
  Element delivered = Element::kUint8;
  FeatureOptions options;

  bool is_bytes() const { return kind == Kind::kBytes && !raw && !options.image; }
  bool is_dense() const { return !is_bytes() && (!ragged || options.pad); }
  // Returns the names of the columns: the values and, if padded, their counts.
  std::vector<std::string> columns() const;
  // True if the height and width of the rows depend on the pictures.
  bool is_unsized() const { return options.image && options.image->height == 0; }
  // Returns the shape of one delivered row, if dense. If is_unsized(), height and width are 0.
  std::vector<int64_t> row_shape() const;

  // Returns the spec of a feature as users describe it. `dtype`: a NumPy name, "bfloat16" or
  // "bytes". Throws SchemaMismatch if the arguments contradict each other. Does not check the
  // fallback: see ColumnBuilder::CheckFallback.
  static FeatureSpec Make(std::string name, const std::string& kind, const std::string& dtype,
                          bool ragged, std::vector<int64_t> shape, bool raw,
                          FeatureOptions options = {});
};

// Maps a name to the index of a requested feature. Records list their features in a similar order,
// so Find first tries the result for the previous record's entry at the same place.
class FeatureFinder {
 public:
  // `features` must outlive the finder.
  explicit FeatureFinder(const std::vector<FeatureSpec>& features);

  // Returns the feature's index, or -1. `rank`: the entry's place in the record.
  int Find(size_t rank, std::string_view name) {
    if (rank < seen_.size() && seen_[rank].name == name) return seen_[rank].index;
    return LookUp(rank, name);
  }

 private:
  struct Seen {
    std::string name;
    int index;
  };

  int LookUp(size_t rank, std::string_view name);

  std::unordered_map<std::string_view, int> indices_;
  std::vector<Seen> seen_;
};

// Returns a product of sizes. Throws std::bad_alloc if it is too large for any allocation.
size_t Multiply(uint64_t a, uint64_t b);
size_t Multiply(const std::vector<int64_t>& extents);

// Throws a SchemaMismatch that names the feature.
[[noreturn]] void RefuseFeature(const std::string& name, const std::string& why);

}  // namespace cachecd

#endif  // CACHECD_CORE_FEATURE_H_
