#include "feature.h"

#include <new>
#include <utility>

#include "errors.h"

namespace cachecd {
namespace {

// The finder remembers the names of this many entries; a record may have more entries.
constexpr size_t kMostSeen = 1024;

Kind FindKind(const std::string& feature, const std::string& name) {
  for (const Kind known : {Kind::kBytes, Kind::kFloat, Kind::kInt64}) {
    if (name == KindName(known)) return known;
  }
  RefuseFeature(feature, "kind '" + name + "', expected 'bytes', 'float' or 'int64'");
}

Element StoredElement(const FeatureSpec& spec, const std::string& kind, const std::string& dtype) {
  if (spec.raw) {
    const std::optional<Element> found = FindElement(dtype);
    if (!found) RefuseFeature(spec.name, "unknown dtype '" + dtype + "' of a raw array");
    if (spec.kind != Kind::kBytes) {
      RefuseFeature(spec.name, "a raw array is of kind 'bytes', not '" + kind + "'");
    }
    return *found;
  }
  const Element element = spec.kind == Kind::kFloat   ? Element::kFloat32
                          : spec.kind == Kind::kInt64 ? Element::kInt64
                                                      : Element::kUint8;
  const std::string expected = spec.kind == Kind::kBytes ? "bytes" : ElementName(element);
  if (dtype != expected) {
    RefuseFeature(spec.name, "a list of kind '" + kind + "' has dtype '" + expected + "', not '" +
                                 dtype + "'");
  }
  return element;
}

Element DeliveredElement(const FeatureSpec& spec) {
  const FeatureOptions& options = spec.options;
  if (options.cast.empty()) return options.one_hot != 0 ? Element::kFloat32 : spec.element;
  const std::optional<Element> found = FindElement(options.cast);
  if (!found) RefuseFeature(spec.name, "unknown dtype '" + options.cast + "' to cast to");
  return *found;
}

void CheckOptions(const FeatureSpec& spec) {
  const FeatureOptions& options = spec.options;
  if (spec.is_bytes() && (!options.cast.empty() || options.one_hot != 0 || options.pad)) {
    RefuseFeature(spec.name, "cast, one_hot and pad are for numbers, not for bytes");
  }
  if (options.one_hot != 0 &&
      (spec.ragged || !spec.shape.empty() || !IsInteger(spec.element) || options.pad)) {
    RefuseFeature(spec.name, "one_hot is for a scalar integer");
  }
  const bool stored = spec.raw && spec.element == Element::kUint8 &&
                      (spec.shape.size() == 2 ||
                       (spec.shape.size() == 3 && (spec.shape[2] == 1 || spec.shape[2] == 3)));
  const bool encoded = spec.kind == Kind::kBytes && !spec.raw && !spec.ragged && spec.shape.empty();
  if (options.image && (!(stored || encoded) || !options.cast.empty() || options.one_hot != 0 ||
                        options.pad || !options.fallback.empty())) {
    RefuseFeature(spec.name, "a picture is one bytes value, or uint8 [height, width, 1 or 3]");
  }
  if (options.pad && !spec.ragged) RefuseFeature(spec.name, "pad is for ragged lists");
  if (options.pad && options.pad_value.size() != ElementBytes(spec.delivered)) {
    RefuseFeature(spec.name, "the value to pad with has " +
                                 std::to_string(options.pad_value.size()) + " bytes, expected " +
                                 std::to_string(ElementBytes(spec.delivered)));
  }
}

}  // namespace

size_t Multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > INT64_MAX) throw std::bad_alloc();
  return product;
}

size_t Multiply(const std::vector<int64_t>& extents) {
  size_t product = 1;
  for (const int64_t extent : extents) product = Multiply(product, static_cast<uint64_t>(extent));
  return product;
}

void RefuseFeature(const std::string& name, const std::string& why) {
  throw SchemaMismatch("feature '" + name + "': " + why);
}

FeatureFinder::FeatureFinder(const std::vector<FeatureSpec>& features) {
  for (size_t i = 0; i < features.size(); ++i) indices_[features[i].name] = static_cast<int>(i);
}

int FeatureFinder::LookUp(size_t rank, std::string_view name) {
  const auto found = indices_.find(name);
  const int index = found == indices_.end() ? -1 : found->second;
  if (rank < kMostSeen) {
    if (rank >= seen_.size()) seen_.resize(rank + 1);
    seen_[rank] = {std::string(name), index};
  }
  return index;
}

std::vector<std::string> FeatureSpec::columns() const {
  const std::string& column = options.name.empty() ? name : options.name;
  if (!options.pad) return {column};
  return {column, "_" + column + "_length"};
}

std::vector<int64_t> FeatureSpec::row_shape() const {
  if (options.one_hot != 0) return {static_cast<int64_t>(options.one_hot)};
  if (options.pad) return {static_cast<int64_t>(*options.pad)};
  if (!options.image) return shape;
  std::vector<int64_t> made{options.image->height, options.image->width};
  if (options.image->classes.empty()) made.push_back(options.image->channels());
  return made;
}

FeatureSpec FeatureSpec::Make(std::string name, const std::string& kind, const std::string& dtype,
                              bool ragged, std::vector<int64_t> shape, bool raw,
                              FeatureOptions options) {
  FeatureSpec spec;
  spec.name = std::move(name);
  spec.kind = FindKind(spec.name, kind);
  spec.raw = raw;
  spec.ragged = ragged;
  for (const int64_t extent : shape) {
    if (extent < 0) RefuseFeature(spec.name, "a negative extent in its shape");
  }
  spec.shape = std::move(shape);
  spec.element = StoredElement(spec, kind, dtype);
  spec.options = std::move(options);
  spec.delivered = DeliveredElement(spec);
  CheckOptions(spec);
  return spec;
}

}  // namespace cachecd
