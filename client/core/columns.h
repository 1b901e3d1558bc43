// Features of records as columns of a batch.
//
// A ColumnBuilder takes one feature of one record after the other and writes its values straight
// into the buffers of which the batch's arrays are made. What does not fit the feature's spec is a
// SchemaMismatch that names the feature; the caller adds where the record lies.

#ifndef CACHECD_CORE_COLUMNS_H_
#define CACHECD_CORE_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "example.h"

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
  kFloat32,
  kFloat64,
};

size_t ElementBytes(Element element);

// The product, as a number of elements or bytes to allocate; std::bad_alloc if nothing can be so
// large.
size_t Multiply(uint64_t a, uint64_t b);

// What a feature of every record is, and so which arrays its column has.
struct FeatureSpec {
  std::string name;
  Kind kind = Kind::kNone;
  bool raw = false;     // one bytes value that holds a little-endian array
  bool ragged = false;  // a list of any length; else of the product of `shape`
  Element element = Element::kUint8;
  std::vector<int64_t> shape;

  bool is_bytes() const { return kind == Kind::kBytes && !raw; }
  uint64_t elements() const;  // of one record, unless ragged

  // The spec of a feature as users write it: dtype a NumPy name, "bfloat16" (carried as uint16) or
  // "bytes"; SchemaMismatch if the parts do not go together.
  static FeatureSpec Make(std::string name, const std::string& kind, const std::string& dtype,
                          bool ragged, std::vector<int64_t> shape, bool raw);
};

struct Array {
  Buffer buffer;
  Element element;
  std::vector<int64_t> shape;
};

// Arrays of a column, in this order:
//     dense         values [rows, *shape]
//     ragged        values [n], row_splits int64 [rows + 1]
//     bytes         data uint8 [n], offsets int64 [rows * product(shape) + 1]
//     ragged bytes  data uint8 [n], offsets int64 [values + 1], row_splits int64 [rows + 1]
struct Column {
  std::string name;
  std::vector<Array> arrays;
};

class ColumnBuilder;

// A value whose place in a column is reserved and whose bytes are still to be copied there.
struct LargeValue {
  ColumnBuilder* column;
  size_t at;
  ByteSpan from;
};

// Values from this size on are worth being copied later.
constexpr size_t kLargeValue = 4096;

// Not thread-safe.
class ColumnBuilder {
 public:
  // For exactly `rows` rows. `hint`: bytes that the values of an earlier batch took.
  // `spec` must outlive the builder.
  ColumnBuilder(const FeatureSpec& spec, uint64_t rows, size_t hint, BufferPool* pool);

  // The feature of the next row; of kind kNone if the record does not have it, which is an empty
  // list if ragged. Large values are only listed in `later`, unless null. SchemaMismatch,
  // MalformedExample, std::bad_alloc.
  void Append(const FeatureView& feature, std::vector<LargeValue>* later);

  // Where a large value belongs, until the next row is appended.
  uint8_t* Place(const LargeValue& value) { return data_.data() + value.at; }

  // How far the column is, and back to there: a row that proves corrupt is taken out again.
  struct Mark {
    uint64_t row;
    uint64_t values;
    size_t used;
  };
  Mark mark() const { return {row_, values_, used_}; }
  void Rollback(const Mark& mark);

  // A row of zeros, or empty.
  void AppendEmpty();

  // Bytes of values so far.
  size_t value_bytes() const { return used_; }

  // The column of the rows appended, which must be all of them.
  Column Finish();

 private:
  void PutBytes(ByteSpan value, std::vector<LargeValue>* later);
  void AppendRaw(const FeatureView& feature, std::vector<LargeValue>* later);
  void AppendNumbers(const FeatureView& feature);
  void AppendBytes(const FeatureView& feature, std::vector<LargeValue>* later);
  void EndValue();
  void EndRow();
  [[noreturn]] void Misfit(const std::string& found, const std::string& expected) const;

  const FeatureSpec& spec_;
  const uint64_t rows_;
  const uint64_t row_elements_;  // 0 if ragged
  const size_t element_bytes_;
  uint64_t row_ = 0;
  uint64_t values_ = 0;  // elements, or values of bytes
  size_t used_ = 0;      // bytes in data_
  Buffer data_;
  Buffer offsets_;  // of bytes: values_ + 1 ends
  Buffer splits_;   // of ragged: row_ + 1 ends
};

}  // namespace cachecd

#endif  // CACHECD_CORE_COLUMNS_H_
