// Converts Examples from and to Python values.

#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "example.h"
#include "module.h"
#include "numbers.h"

namespace cachecd {
namespace {

constexpr const char* kExpected =
    "expected bytes, str, int, float, a list of one of these, or an int64 or float32 array of at "
    "most one dimension";

// Features made from Python values; keeps the objects alive that their spans point into.
class Encoder {
 public:
  void Add(nb::handle name, nb::handle value) {
    if (!PyUnicode_Check(name.ptr())) throw nb::type_error("a feature's name must be a str");
    feature_ = &features_.emplace_back();
    feature_->name = Utf8(name);
    if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
      for (nb::handle element : nb::borrow<nb::sequence>(value)) AddScalar(element);
    } else if (KindOf(value) == Kind::kNone && nb::hasattr(value, "dtype")) {
      AddArray(value);
    } else {
      AddScalar(value);
    }
    // Set last, because adding an element may move the vector's data.
    if (feature_->kind == Kind::kInt64 && feature_->ints == nullptr) {
      feature_->ints = ints_.back().data();
      feature_->count = ints_.back().size();
    } else if (feature_->kind == Kind::kFloat && feature_->floats == nullptr) {
      feature_->floats = floats_.back().data();
      feature_->count = floats_.back().size();
    }
  }

  nb::object Finish() {
    const uint64_t size = PlanExample(&features_);
    nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!bytes.is_valid()) throw nb::python_error();
    auto* to = reinterpret_cast<uint8_t*>(PyBytes_AsString(bytes.ptr()));
    if (size > kWorthReleasingTheGil) {
      const WithoutGil release;
      WriteExample(features_, to);
    } else {
      WriteExample(features_, to);
    }
    return bytes;
  }

 private:
  static Kind KindOf(nb::handle value) {
    PyObject* o = value.ptr();
    if (PyBytes_Check(o) || PyUnicode_Check(o) || PyByteArray_Check(o) || PyMemoryView_Check(o)) {
      return Kind::kBytes;
    }
    if (PyLong_Check(o)) return Kind::kInt64;  // bool is a subclass of int
    if (PyFloat_Check(o)) return Kind::kFloat;
    return Kind::kNone;
  }

  static std::string_view Utf8(nb::handle text) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<size_t>(size)};
  }

  [[noreturn]] void Refuse(const std::string& why) const {
    const std::string message = "feature '" + std::string(feature_->name) + "': " + why;
    throw nb::type_error(message.c_str());
  }

  // Returns the type's name for a message; clears Python's error, which the message replaces.
  static std::string TypeName(nb::handle value) {
    PyErr_Clear();
    return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
  }

  void AddScalar(nb::handle value) {
    const Kind kind = KindOf(value);
    if (kind == Kind::kNone) Refuse("cannot encode " + TypeName(value) + "; " + kExpected);
    if (feature_->kind == Kind::kNone) {
      feature_->kind = kind;
      if (kind == Kind::kInt64) ints_.emplace_back();
      if (kind == Kind::kFloat) floats_.emplace_back();
    } else if (feature_->kind != kind) {
      Refuse(std::string("a list of ") + KindName(feature_->kind) + " and " + KindName(kind) +
             ", expected one kind");
    }
    if (kind == Kind::kBytes) {
      feature_->bytes.push_back(BytesOf(value));
    } else if (kind == Kind::kInt64) {
      int overflow;
      const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
      if (overflow != 0) Refuse("an int beyond 64 bits");
      ints_.back().push_back(number);
    } else {
      const double number = PyFloat_AsDouble(value.ptr());
      if (std::isfinite(number) && std::abs(number) > std::numeric_limits<float>::max()) {
        Refuse("a float beyond 32 bits: return numpy.float64");
      }
      floats_.back().push_back(static_cast<float>(number));
    }
  }

  ByteSpan BytesOf(nb::handle value) {
    if (PyUnicode_Check(value.ptr())) {
      const std::string_view text = Utf8(value);
      return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    }
    return views_.emplace_back(value).span();
  }

  void AddArray(nb::handle value) {
    const auto dtype = nb::cast<std::string>(nb::str(value.attr("dtype").attr("name")));
    const bool is_int = dtype == "int64";
    if (!is_int && dtype != "float32")
      Refuse("cannot encode an array of " + dtype + "; " + kExpected);
    const auto dimensions = nb::cast<int>(value.attr("ndim"));
    if (dimensions > 1) {
      Refuse("an array of " + std::to_string(dimensions) + " dimensions; " + kExpected);
    }
    // Also converts a scalar to an array of one element, and big-endian numbers to native ones.
    const nb::object array =
        nb::module_::import_("numpy").attr("ascontiguousarray")(value, nb::arg("dtype") = dtype);
    const ByteSpan bytes = views_.emplace_back(array).span();
    feature_->kind = is_int ? Kind::kInt64 : Kind::kFloat;
    feature_->count = bytes.size / (is_int ? sizeof(int64_t) : sizeof(float));
    // NumPy aligns the memory it allocates; `bytes.data` of an empty array is a valid address.
    if (is_int) {
      feature_->ints = reinterpret_cast<const int64_t*>(bytes.data);
    } else {
      feature_->floats = reinterpret_cast<const float*>(bytes.data);
    }
  }

  std::vector<FeatureValue> features_;
  FeatureValue* feature_ = nullptr;  // the feature being added
  std::deque<BytesArgument> views_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::vector<float>> floats_;
};

nb::object EncodeExample(nb::dict features) {
  Encoder encoder;
  for (auto [name, value] : features) encoder.Add(name, value);
  return encoder.Finish();
}

template <typename T>
std::vector<T> Numbers(const FeatureView& feature) {
  std::vector<T> numbers(CountValues(feature));
  NumberReader reader(feature);
  reader.Read(reinterpret_cast<uint8_t*>(numbers.data()), numbers.size());
  return numbers;
}

nb::list DecodeValues(const FeatureView& feature) {
  nb::list values;
  if (feature.kind == Kind::kBytes) {
    ForEachBytes(feature, [&](ByteSpan value) {
      values.append(nb::bytes(reinterpret_cast<const char*>(value.data), value.size));
    });
    return values;
  }
  if (feature.kind == Kind::kInt64) {
    for (const int64_t number : Numbers<int64_t>(feature)) values.append(number);
  } else {
    for (const float number : Numbers<float>(feature)) values.append(number);
  }
  return values;
}

// Returns a dict from each feature's name to (kind, describe(feature)).
template <typename Describe>
nb::dict FeaturesOf(nb::object record, Describe describe) {
  const BytesArgument bytes(record);
  nb::dict features;
  ForEachFeature(bytes.span(), [&](std::string_view name, ByteSpan message) {
    const nb::object key =
        nb::steal(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), nullptr));
    if (!key.is_valid()) throw nb::python_error();  // a ValueError
    const FeatureView feature = ParseFeature(message, bytes.span().data);
    if (feature.kind == Kind::kNone) {
      if (features.contains(key)) nb::del(features[key]);
    } else {
      const nb::tuple found = nb::make_tuple(KindName(feature.kind), describe(feature));
      if (features.contains(key) && !features[key].equal(found)) {
        throw std::invalid_argument("feature '" + std::string(name) +
                                    "' occurs twice, with different values");
      }
      features[key] = found;
    }
  });
  return features;
}

nb::dict DecodeExample(nb::object record) { return FeaturesOf(record, DecodeValues); }

nb::dict CountExample(nb::object record) { return FeaturesOf(record, CountValues); }

}  // namespace

void BindExample(nb::module_& module) {
  module.def("encode_example", &EncodeExample, nb::arg("features"));
  module.def("decode_example", &DecodeExample, nb::arg("record"));
  module.def("count_example", &CountExample, nb::arg("record"));
}

}  // namespace cachecd
