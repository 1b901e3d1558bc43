#include "element.h"

namespace cachecd {
namespace {

struct Known {
  const char* name;
  size_t bytes;
};

// Indexed by the value of the Element.
constexpr Known kElements[] = {
    {"bool", 1},     {"int8", 1},    {"uint8", 1},   {"int16", 2},  {"uint16", 2},
    {"int32", 4},    {"uint32", 4},  {"int64", 8},   {"uint64", 8}, {"float16", 2},
    {"bfloat16", 2}, {"float32", 4}, {"float64", 8},
};

const Known& Find(Element element) { return kElements[static_cast<size_t>(element)]; }

}  // namespace

size_t ElementBytes(Element element) { return Find(element).bytes; }

const char* ElementName(Element element) { return Find(element).name; }

bool IsInteger(Element element) { return element <= Element::kUint64; }

std::optional<Element> FindElement(std::string_view name) {
  for (size_t i = 0; i < sizeof kElements / sizeof kElements[0]; ++i) {
    if (name == kElements[i].name) return static_cast<Element>(i);
  }
  return std::nullopt;
}

}  // namespace cachecd
