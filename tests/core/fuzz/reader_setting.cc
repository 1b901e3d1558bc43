#include "reader_setting.h"

#include <algorithm>
#include <string>

#include "example.h"

namespace cachecd::native {
namespace {

constexpr int64_t kImageBytes = 4100;
static_assert(kImageBytes >= kLargeValue);

// A serialized Example whose one feature is this value, as options hold a default.
std::string Default(const std::string& name, const std::string& value) {
  std::vector<FeatureValue> features(1);
  features[0].name = name;
  features[0].kind = Kind::kBytes;
  features[0].bytes = {{reinterpret_cast<const uint8_t*>(value.data()), value.size()}};
  std::string example(PlanExample(&features), '\0');
  WriteExample(features, reinterpret_cast<uint8_t*>(example.data()));
  return example;
}

const std::vector<FeatureSpec>& PlainSpecs() {
  static const std::vector<FeatureSpec> specs = {
      FeatureSpec::Make("label", "int64", "int64", false, {}, false),
      FeatureSpec::Make("name", "bytes", "bytes", false, {}, false),
      FeatureSpec::Make("list", "int64", "int64", true, {}, false),
  };
  return specs;
}

// An image is large enough to be converted while its record is verified.
const std::vector<FeatureSpec>& ConvertedSpecs() {
  const auto make = [] {
    FeatureOptions one_hot, padded, named, cast;
    one_hot.one_hot = 9;
    padded.cast = "int16";
    padded.pad = 1;
    padded.pad_value = std::string(2, '\xff');
    named.fallback = Default("name", "nameless");
    cast.cast = "uint16";
    cast.fallback = Default("image", std::string(kImageBytes, '\x01'));
    return std::vector<FeatureSpec>{
        FeatureSpec::Make("label", "int64", "int64", false, {}, false, one_hot),
        FeatureSpec::Make("list", "int64", "int64", true, {}, false, padded),
        FeatureSpec::Make("name", "bytes", "bytes", false, {}, false, named),
        FeatureSpec::Make("image", "bytes", "uint8", false, {kImageBytes}, true, cast),
    };
  };
  static const std::vector<FeatureSpec> specs = make();
  return specs;
}

}  // namespace

void PrepareSpecs() {
  PlainSpecs();
  ConvertedSpecs();
}

Setting::Setting(const Bytes& input) {
  const uint8_t options = input[0];
  shuffle = (options & 1) != 0;
  replace = (options & 2) != 0;
  const Last unpadded = (input[1] & 32) != 0 ? Last::kShort : Last::kDropped;
  last = (options & 4) != 0 ? Last::kPadded : unpadded;
  has_sidecar = (options & 8) != 0;
  threads = (options & 16) != 0 ? 2 : 1;
  world = 1 + (options >> 5 & 1);
  rank = world == 2 ? options >> 6 & 1 : 0;
  converted = (options & 128) != 0;
  batch_size = 1 + input[1] % 8;
  restart = (input[1] & 8) != 0;
  windowed = (input[1] & 16) != 0;
  const size_t sidecar_bytes =
      has_sidecar ? std::min<size_t>(input[2] | input[3] << 8, input.size() - kHead) : 0;
  const auto cut = input.end() - static_cast<ptrdiff_t>(sidecar_bytes);
  data.assign(input.begin() + kHead, cut);
  sidecar.assign(cut, input.end());
}

Bytes Setting::Joined() const {
  Bytes input(kHead);
  input[0] =
      static_cast<uint8_t>(shuffle | replace << 1 | padded() << 2 | has_sidecar << 3 |
                           (threads - 1) << 4 | (world - 1) << 5 | rank << 6 | converted << 7);
  input[1] = static_cast<uint8_t>((batch_size - 1) | restart << 3 | windowed << 4 |
                                  (last == Last::kShort) << 5);
  input[2] = static_cast<uint8_t>(sidecar.size());
  input[3] = static_cast<uint8_t>(sidecar.size() >> 8);
  input.insert(input.end(), data.begin(), data.end());
  input.insert(input.end(), sidecar.begin(), sidecar.end());
  return input;
}

const std::vector<FeatureSpec>& Setting::specs() const {
  return converted ? ConvertedSpecs() : PlainSpecs();
}

ReaderOptions Setting::options() const {
  ReaderOptions options;
  options.order.seed = 17;
  options.order.shuffle = shuffle;
  options.order.rank = rank;
  options.order.world = world;
  options.order.window = window();
  options.shape.features = specs();
  options.shape.batch_size = batch_size;
  options.shape.ids = true;
  options.last = last;
  options.threads = threads;
  options.prefetch_bytes = 64 << 10;
  options.replace = replace;
  return options;
}

Expected::Expected(const Setting& setting) : data(setting.data) {
  const auto sidecar = ParseSidecar(setting.sidecar);
  const auto counted = SidecarRecords(setting.sidecar);
  const bool fits = sidecar && sidecar->data_bytes == data.size();
  const bool unusable = setting.has_sidecar && !fits && !setting.replace;
  refused_later = unusable && setting.counted_first() && counted;
  refused = unusable && !refused_later;
  Walked walked;
  uint64_t end = data.size();
  if (setting.has_sidecar && sidecar) {
    walked.offsets = sidecar->offsets;
    end = sidecar->data_bytes;
  } else {
    walked = WalkFrames(data, false);
    end = walked.fault.value_or(end);
    refused |= !setting.has_sidecar && walked.fault && (!setting.replace || walked.offsets.empty());
  }
  whole = (!setting.has_sidecar || fits) && !walked.fault;
  begins = walked.offsets;
  for (size_t i = 0; i < begins.size(); ++i) {
    const uint64_t beyond = i + 1 < begins.size() ? begins[i + 1] : end;
    const auto length = FrameAt(data, begins[i]);
    good.push_back(length && begins[i] + *length + 16 == beyond);
  }
  if (setting.has_sidecar && setting.counted_first() && counted) {
    // As many as were counted, whatever there prove to be.
    begins.resize(*counted, end);
    good.resize(*counted, false);
  }
}

std::optional<ReferenceExample> Expected::Parse(size_t record) const {
  const uint64_t begin = begins[record];
  return ParseExample({data.data() + begin + 12, *FrameAt(data, begin)});
}

ReferenceFeature FeatureOf(const ReferenceExample& example, const FeatureSpec& spec) {
  const auto found = example.find(spec.name);
  return Resolved(spec, found == example.end() ? nullptr : &found->second);
}

bool FitsAll(const Setting& setting, const std::optional<ReferenceExample>& example) {
  if (!example) return false;
  return std::all_of(setting.specs().begin(), setting.specs().end(), [&](const FeatureSpec& spec) {
    return Fits(spec, FeatureOf(*example, spec));
  });
}

}  // namespace cachecd::native
