#include "defaults.h"

#include <utility>

#include "example.h"

namespace cachecd::native {
namespace {

std::string Serialized(FeatureValue feature) {
  std::vector<FeatureValue> features = {std::move(feature)};
  std::string example(PlanExample(&features), '\0');
  WriteExample(features, reinterpret_cast<uint8_t*>(example.data()));
  return example;
}

}  // namespace

std::string DefaultInts(const std::string& name, const std::vector<int64_t>& values) {
  FeatureValue feature;
  feature.name = name;
  feature.kind = Kind::kInt64;
  feature.ints = values.data();
  feature.count = values.size();
  return Serialized(feature);
}

std::string DefaultBytes(const std::string& name, const std::string& value) {
  FeatureValue feature;
  feature.name = name;
  feature.kind = Kind::kBytes;
  feature.bytes = {{reinterpret_cast<const uint8_t*>(value.data()), value.size()}};
  return Serialized(feature);
}

}  // namespace cachecd::native
