// The element types of columns.

#ifndef CACHECD_CORE_ELEMENT_H_
#define CACHECD_CORE_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cachecd {

enum class Element : uint8_t {
  kBool,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBfloat16,  // uint16 in NumPy, which lacks bfloat16
  kFloat32,
  kFloat64,
};

size_t ElementBytes(Element element);
const char* ElementName(Element element);

// True for all integer types and bool.
bool IsInteger(Element element);

// Returns the element of a NumPy type name or of "bfloat16", else nothing.
std::optional<Element> FindElement(std::string_view name);

}  // namespace cachecd

#endif  // CACHECD_CORE_ELEMENT_H_
