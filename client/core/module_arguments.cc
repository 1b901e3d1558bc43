// Converts Python arguments, such as files, stages and features, to the core's types.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fileset.h"
#include "module.h"

namespace cachecd {
namespace {

// Returns `value` as a tuple of `size` items; otherwise throws TypeError with `expected`.
nb::tuple TupleArgument(nb::handle value, size_t size, const char* expected) {
  if (!PyTuple_Check(value.ptr()) || nb::len(value) != size) throw nb::type_error(expected);
  return nb::borrow<nb::tuple>(value);
}

std::string TextArgument(nb::handle value, const char* expected) {
  if (!PyUnicode_Check(value.ptr())) throw nb::type_error(expected);
  return nb::cast<std::string>(value);
}

int64_t IntegerArgument(nb::handle value) {
  const Py_ssize_t number = PyNumber_AsSsize_t(value.ptr(), PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

uint64_t CountArgument(nb::handle value) {
  const int64_t count = IntegerArgument(value);
  if (count < 1) throw std::invalid_argument("features: expected a number of at least 1");
  return static_cast<uint64_t>(count);
}

std::string BytesOf(nb::handle value) {
  const BytesArgument bytes(value);
  return {reinterpret_cast<const char*>(bytes.span().data), bytes.size()};
}

FeatureOptions FeatureOptionsArgument(nb::handle given) {
  constexpr const char* kPad = "features: expected (length, value as bytes) to pad with";
  FeatureOptions options;
  if (!PyDict_Check(given.ptr())) throw nb::type_error("features: expected a dict of options");
  for (auto [key, value] : nb::borrow<nb::dict>(given)) {
    const std::string name = TextArgument(key, "features: expected names of options");
    if (name == "name") {
      options.name = TextArgument(value, "features: expected a column's name");
    } else if (name == "cast") {
      options.cast = TextArgument(value, "features: expected the name of a dtype to cast to");
    } else if (name == "one_hot") {
      options.one_hot = CountArgument(value);
    } else if (name == "pad") {
      const nb::tuple pad = TupleArgument(value, 2, kPad);
      options.pad = CountArgument(pad[0]);
      options.pad_value = BytesOf(pad[1]);
    } else if (name == "default") {
      options.fallback = BytesOf(value);
    } else if (name == "optional") {
      options.optional = nb::cast<bool>(value);
    } else if (name == "image") {
      options.image = ImageOptionsArgument(value);
    } else if (name == "count_zeros") {
      options.count_zeros = nb::cast<bool>(value);
    } else {
      throw std::invalid_argument("features: unknown option '" + name + "'");
    }
  }
  return options;
}

}  // namespace

std::vector<FileSet::Input> FilesArgument(nb::sequence files) {
  std::vector<FileSet::Input> inputs;
  for (nb::handle item : files) {
    const nb::tuple file = TupleArgument(item, 2, "files: expected (path, offsets or None) tuples");
    FileSet::Input input{PathArgument(file[0]), nullptr};
    const nb::object offsets = file[1];
    if (!offsets.is_none()) {
      input.offsets =
          std::make_shared<const std::vector<uint64_t>>(OffsetsArgument(offsets, "files"));
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

namespace {

std::vector<Stage> StageTables(nb::handle stages) {
  using Table = nb::ndarray<const uint64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
  std::vector<Stage> found;
  for (nb::handle item : nb::iter(stages)) {
    Table table;
    if (!nb::try_cast(item, table, false)) {
      throw nb::type_error("stages: expected arrays uint64 [slices, 3] of (file, first, count)");
    }
    Stage slices;
    for (size_t i = 0; i < table.shape(0); ++i) {
      const uint64_t* row = table.data() + 3 * i;
      if (row[0] > UINT32_MAX) throw std::invalid_argument("stages: no such file");
      slices.push_back({static_cast<uint32_t>(row[0]), row[1], row[2]});
    }
    found.push_back(std::move(slices));
  }
  return found;
}

}  // namespace

std::vector<Stage> StagesArgument(nb::object stages) {
  if (stages.is_none()) return {};
  std::vector<Stage> found = StageTables(stages);
  if (found.empty()) throw std::invalid_argument("stages: expected one at least, or None");
  return found;
}

std::optional<Mixture> MixtureArgument(nb::object mixture) {
  constexpr const char* kExpected = "mixture: expected (bounds, key, positions, parts), or None";
  if (mixture.is_none()) return {};
  const nb::tuple fields = TupleArgument(mixture, 4, kExpected);
  Mixture found{nb::cast<std::vector<uint64_t>>(fields[0]),
                nb::cast<uint64_t>(fields[1]),
                nb::cast<uint64_t>(fields[2]),
                {}};
  for (nb::handle item : nb::iter(nb::object(fields[3]))) {
    const nb::tuple part = TupleArgument(item, 2, "mixture: expected (window, stages) parts");
    found.parts.push_back({nb::cast<uint64_t>(part[0]), StageTables(nb::object(part[1]))});
  }
  return found;
}

Last LastArgument(const std::string& last) {
  if (last == "drop") return Last::kDropped;
  if (last == "short") return Last::kShort;
  if (last == "pad") return Last::kPadded;
  throw std::invalid_argument("last is '" + last + "', expected 'drop', 'short' or 'pad'");
}

std::optional<Division::Nodes> NodesArgument(std::optional<std::pair<uint64_t, uint64_t>> nodes) {
  if (!nodes) return {};
  return Division::Nodes{nodes->first, nodes->second};
}

std::vector<int64_t> DatasetsArgument(nb::object datasets, size_t files) {
  using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  if (datasets.is_none()) return {};
  Numbers numbers;
  if (!nb::try_cast(datasets, numbers, false)) {
    throw nb::type_error("datasets: expected an array int64 [files]");
  }
  if (numbers.shape(0) != files) {
    throw std::invalid_argument("datasets: " + std::to_string(numbers.shape(0)) + " numbers for " +
                                std::to_string(files) + " files");
  }
  return {numbers.data(), numbers.data() + files};
}

std::vector<FeatureSpec> FeaturesArgument(nb::sequence features) {
  constexpr const char* kExpected =
      "features: expected (name, kind, dtype, shape, raw) or (..., options) tuples";
  std::vector<FeatureSpec> specs;
  for (nb::handle item : features) {
    const bool has_options = PyTuple_Check(item.ptr()) && nb::len(item) == 6;
    const nb::tuple fields = TupleArgument(item, has_options ? 6 : 5, kExpected);
    const nb::object extents = fields[3];
    std::vector<int64_t> shape;
    if (!extents.is_none()) {
      for (nb::handle extent : nb::iter(extents)) shape.push_back(IntegerArgument(extent));
    }
    const int raw = PyObject_IsTrue(nb::object(fields[4]).ptr());
    if (raw < 0) throw nb::python_error();
    specs.push_back(FeatureSpec::Make(
        TextArgument(fields[0], kExpected), TextArgument(fields[1], kExpected),
        TextArgument(fields[2], kExpected), extents.is_none(), std::move(shape), raw != 0,
        has_options ? FeatureOptionsArgument(fields[5]) : FeatureOptions()));
    ColumnBuilder::CheckFallback(specs.back());
  }
  return specs;
}

ImageOptions ImageOptionsArgument(nb::handle given) {
  if (!PyDict_Check(given.ptr())) throw nb::type_error("an image: expected a dict of options");
  const auto dict = nb::borrow<nb::dict>(given);
  size_t taken = 0;
  const auto take = [&](const char* name, auto* to) {
    if (!dict.contains(name)) return;
    ++taken;
    *to = nb::cast<std::decay_t<decltype(*to)>>(dict[name]);
  };
  ImageOptions options;
  std::string crop = "center";
  std::pair<double, double> scale{options.scale[0], options.scale[1]};
  std::pair<double, double> ratio{options.ratio[0], options.ratio[1]};
  std::vector<std::tuple<uint8_t, uint8_t, uint8_t, uint8_t>> classes;
  take("crop", &crop);
  take("height", &options.height);
  take("width", &options.width);
  take("shorter", &options.shorter);
  take("resized", &options.resized);
  take("scale", &scale);
  take("ratio", &ratio);
  take("flip", &options.flip);
  take("grey", &options.grey);
  take("nearest", &options.nearest);
  take("max_pixels", &options.max_pixels);
  take("classes", &classes);
  take("other", &options.other);
  if (taken != dict.size()) throw std::invalid_argument("an image: unknown option");
  if (crop == "random") options.crop = ImageOptions::Crop::kRandom;
  if (crop == "none") options.crop = ImageOptions::Crop::kNone;
  std::tie(options.scale[0], options.scale[1]) = scale;
  std::tie(options.ratio[0], options.ratio[1]) = ratio;
  for (const auto& [red, green, blue, number] : classes) {
    options.classes.push_back({red, green, blue, number});
  }
  return options;
}

}  // namespace cachecd
