// The types of the numbers in columns.

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
  kBfloat16,  // NumPy, which does not know it, gets uint16
  kFloat32,
  kFloat64,
};

size_t ElementBytes(Element element);
const char* ElementName(Element element);

// bool included.
bool IsInteger(Element element);

// The element of a NumPy name or of "bfloat16".
std::optional<Element> FindElement(std::string_view name);

}  // namespace cachecd

#endif  // CACHECD_CORE_ELEMENT_H_
