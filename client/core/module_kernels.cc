// The innermost loops as Python functions; for tests, also as they run on other processors.

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.h"
#include "convert.h"
#include "crc32c.h"
#include "image.h"
#include "module.h"
#include "threads.h"
#include "varint.h"

namespace cachecd {
namespace {

Element ElementArgument(const std::string& name) {
  const std::optional<Element> found = FindElement(name);
  if (!found) throw std::invalid_argument("unknown dtype '" + name + "'");
  return *found;
}

CrcBy CrcByArgument(const std::string& name) {
  if (name == "folding") return CrcBy::kFolding;
  if (name == "streams") return CrcBy::kStreams;
  if (name == "tables") return CrcBy::kTables;
  throw std::invalid_argument("unknown implementation '" + name + "'");
}

uint32_t Crc32cBy(const std::string& by, nb::object data, uint32_t crc) {
  const BytesArgument bytes(data);
  return Crc32c(CrcByArgument(by), nullptr, bytes.span().data, bytes.size(), crc, {});
}

nb::tuple CopyWithCrc32cBy(const std::string& by, nb::object data, size_t start, size_t coming) {
  const BytesArgument bytes(data);
  const ByteSpan from = bytes.span();
  const Buffer buffer = BufferPool::Create(0)->Take(start + from.size + 1);
  uint8_t* to = buffer.data() + start;
  to[from.size] = 0xa5;
  const uint32_t crc = Crc32c(CrcByArgument(by), to, from.data, from.size, 0,
                              {from.data, std::min(coming, from.size)});
  if (to[from.size] != 0xa5) throw std::runtime_error("written beyond the end");
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(to), from.size), crc);
}

nb::object Convert(nb::object data, const std::string& source, const std::string& target,
                   bool portable) {
  const BytesArgument bytes(data);
  const Element from = ElementArgument(source);
  const Element to = ElementArgument(target);
  const size_t count = bytes.size() / ElementBytes(from);
  Array made{
      BufferPool::Create(0)->Take(count * ElementBytes(to)), to, {static_cast<int64_t>(count)}};
  {
    std::optional<WithoutGil> release;
    if (bytes.size() >= kWorthReleasingTheGil) release.emplace();
    const DefaultFloats floats;
    Conversion(from, to, portable)(bytes.span().data, count, made.buffer.data());
  }
  return ToNumpy(std::move(made));
}

nb::tuple DecodeSomeVarints(nb::object data, size_t limit, bool portable) {
  const BytesArgument bytes(data);
  const ByteSpan span = bytes.span();
  std::vector<int64_t> values(limit);
  const uint8_t* at = span.begin();
  const size_t count =
      (portable ? DecodeVarintsPortable : DecodeVarints)(&at, span.end(), values.data(), limit);
  values.resize(count);
  return nb::make_tuple(ToNumpy(std::move(values), true), at - span.begin());
}

// decode(placement, to) writes the pixels.
template <typename Decode>
nb::object MakePicture(const ImageOptions& options, Extent picture, uint64_t key, Decode decode) {
  const Placement placement = Place(options, picture, key);
  std::vector<int64_t> shape{placement.result.height, placement.result.width};
  const size_t bytes = size_t{placement.result.height} * placement.result.width;
  if (options.classes.empty()) shape.push_back(options.channels());
  Array made{BufferPool::Create(0)->Take(bytes * options.channels()), Element::kUint8, shape};
  decode(placement, made.buffer.data());
  return ToNumpy(std::move(made));
}

nb::object DecodeImage(nb::object data, nb::dict given, uint64_t key, bool portable) {
  const BytesArgument bytes(data);
  const ImageOptions options = ImageOptionsArgument(given);
  ImageDecoder decoder(portable);
  const Extent picture = decoder.Measure(bytes.span(), options.max_pixels);
  return MakePicture(options, picture, key, [&](const Placement& placement, uint8_t* to) {
    const WithoutGil release;
    decoder.Decode(bytes.span(), options, placement, to);
  });
}

int FindOrientation(nb::bytes exif, nb::bytes xmp) {
  return Orientation(BytesArgument(exif).span(), BytesArgument(xmp).span());
}

using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

nb::object ConvertImage(Pixels pixels, nb::dict given, uint64_t key) {
  const ImageOptions options = ImageOptionsArgument(given);
  const auto extent = [&](size_t axis) { return static_cast<uint32_t>(pixels.shape(axis)); };
  const Extent picture{extent(0), extent(1)};
  return MakePicture(options, picture, key, [&](const Placement& placement, uint8_t* to) {
    ImageDecoder().Convert(pixels.data(), picture, extent(2), options, placement, to);
  });
}

nb::tuple PlaceImage(nb::dict options, uint32_t height, uint32_t width, uint64_t key) {
  const Placement at = Place(ImageOptionsArgument(options), {height, width}, key);
  return nb::make_tuple(nb::make_tuple(at.y, at.x, at.height, at.width),
                        nb::make_tuple(at.scaled.height, at.scaled.width),
                        nb::make_tuple(at.top, at.left, at.result.height, at.result.width),
                        at.flip);
}

nb::set ImageFormats() {
  nb::set formats;
  if (CanDecodeJpeg()) formats.add("jpeg");
  if (CanDecodePng()) formats.add("png");
  return formats;
}

}  // namespace

void BindKernels(nb::module_& module) {
  module.def("_crc32c_by", &Crc32cBy, nb::arg("by"), nb::arg("data"), nb::arg("crc") = 0);
  module.def("_copy_with_crc32c_by", &CopyWithCrc32cBy, nb::arg("by"), nb::arg("data"),
             nb::arg("start"), nb::arg("coming"));
  module.def("convert", &Convert, nb::arg("data"), nb::arg("source"), nb::arg("target"),
             nb::arg("_portable") = false);
  // Decodes only the values that need no bounds checks; see varint.h.
  module.def("_decode_some_varints", &DecodeSomeVarints, nb::arg("data"), nb::arg("limit"),
             nb::arg("portable"));
  module.def("image_formats", &ImageFormats);
  module.def("place_image", &PlaceImage, nb::arg("options"), nb::arg("height"), nb::arg("width"),
             nb::arg("key"));
  module.def("decode_image", &DecodeImage, nb::arg("data"), nb::arg("options"), nb::arg("key") = 0,
             nb::arg("_portable") = false);
  module.def("orientation", &FindOrientation, nb::arg("exif"), nb::arg("xmp"));
  module.def("convert_image", &ConvertImage, nb::arg("pixels"), nb::arg("options"),
             nb::arg("key") = 0);
}

}  // namespace cachecd
