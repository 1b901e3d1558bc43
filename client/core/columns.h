// Builds the columns of a batch from the features of records.
//
// A ColumnBuilder appends one feature of record after record. It writes the values directly into
// the buffers of the batch's arrays. If a feature does not fit its spec, the builder throws a
// SchemaMismatch that names the feature; the caller adds the record's location.

#ifndef CACHECD_CORE_COLUMNS_H_
#define CACHECD_CORE_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "convert.h"
#include "example.h"
#include "feature.h"

namespace cachecd {

struct Array {
  Buffer buffer;
  Element element;
  std::vector<int64_t> shape;
};

// The arrays of a column, in this order:
//     dense         values [rows, *row_shape]; padded: [rows, length]
//     ragged        values [n], row_splits int64 [rows + 1]
//     bytes         data uint8 [n], offsets int64 [rows * product(shape) + 1]
//     ragged bytes  data uint8 [n], offsets int64 [values + 1], row_splits int64 [rows + 1]
struct Column {
  std::string name;
  std::vector<Array> arrays;
};

class ColumnBuilder;

// A value whose place in a column is reserved, but whose bytes are not copied yet.
struct LargeValue {
  ColumnBuilder* column;
  size_t at;
  ByteSpan from;
};

// Values of at least this size are copied later, as LargeValue.
constexpr size_t kLargeValue = 1024;

// Not thread-safe.
class ColumnBuilder {
 public:
  // Builds exactly `rows` rows. `hint`: the bytes of values in an earlier batch. `spec` must
  // outlive the builder.
  ColumnBuilder(const FeatureSpec& spec, uint64_t rows, size_t hint, BufferPool* pool);

  // Appends the next row. FeatureView() means that the record lacks the feature. The fallback
  // replaces a missing feature, and a dense feature without a kind. Without a fallback, ragged rows
  // are empty, and other rows throw. If `later` is not null, large values are only added to
  // `later`. Throws SchemaMismatch, MalformedExample, std::bad_alloc.
  void Append(const FeatureView& feature, std::vector<LargeValue>* later);

  // Returns the place of a large value, valid until the next row is appended.
  uint8_t* Place(const LargeValue& value) { return data_.data() + value.at; }
  // Returns the conversion of large values. If it is empty, their bytes are copied unchanged.
  const Conversion& conversion() const { return conversion_; }

  // True if the rows are pictures. Append only locates a picture. Verify the record, and then call
  // MeasurePicture and DecodePicture before the next row. Both throw DamagedImage, SchemaMismatch.
  bool has_pictures() const { return spec_.options.image.has_value(); }
  const std::string& name() const { return spec_.name; }
  Extent MeasurePicture(ImageDecoder* decoder) const;
  // Returns the orientation of the last measured picture, or 1 for stored pixels.
  int orientation(const ImageDecoder& decoder) const {
    return spec_.raw ? 1 : decoder.orientation();
  }
  void DecodePicture(ImageDecoder* decoder, Extent picture, uint64_t key);

  // A state of the column. If a record is corrupt, Rollback removes the rows after this state.
  struct Mark {
    uint64_t row;
    uint64_t values;
    size_t used;
  };
  Mark mark() const { return {row_, values_, used_}; }
  void Rollback(const Mark& mark);

  // Appends a row without a record: empty, padding, or zeros.
  void AppendEmpty();

  // Reserves room for `bytes` of values in total, for values without a fixed size.
  void Reserve(size_t bytes) { data_.Grow(used_, bytes); }

  // Returns the bytes of values appended.
  size_t value_bytes() const { return used_; }

  // Adds the column, after exactly `rows` rows. If it is padded, adds a second column
  // `_NAME_length`, int64 [rows]: the number of values in each row that are not padding.
  void Finish(std::vector<Column>* columns);

  // Throws SchemaMismatch if the spec's fallback is not a value of the feature.
  static void CheckFallback(const FeatureSpec& spec);

 private:
  void AppendRaw(const FeatureView& feature, std::vector<LargeValue>* later);
  void AppendOneHot(const FeatureView& feature);
  void AppendDenseNumbers(const FeatureView& feature);
  void AppendRaggedNumbers(const FeatureView& feature);
  void AppendBytes(const FeatureView& feature, std::vector<LargeValue>* later);
  // Pads a row after its first `count` values.
  void PadRow(uint64_t count);
  void EndValue();
  void EndRow();

  const FeatureSpec& spec_;
  const uint64_t rows_;
  const size_t element_bytes_;     // of a delivered element
  uint64_t stored_elements_ = 0;   // per record, unless ragged
  uint64_t row_elements_ = 0;      // per delivered row, if dense
  size_t row_bytes_ = 0;           // row_elements_ in bytes
  Conversion conversion_;          // of stored numbers; empty if none is needed
  uint8_t one_[sizeof(uint64_t)];  // the element 1 of one_hot
  FeatureView fallback_;
  ByteSpan picture_;  // in the record, of the row appended last
  Extent extent_;     // of each row, if the rows are pictures
  uint64_t row_ = 0;
  uint64_t values_ = 0;  // elements of a ragged column, or values of a bytes column
  size_t used_ = 0;      // bytes in data_
  Buffer data_;
  Buffer offsets_;  // of bytes columns: values_ + 1 offsets
  Buffer splits_;   // of ragged columns: row_ + 1 offsets
  Buffer lengths_;  // of padded columns: row_ counts of values
};

// The reason why a record does not fit a schema. `name`, `kind` and `count` describe the feature in
// the record. The name is empty if the record is not an Example.
struct Misfit {
  std::string why;
  std::string name;
  Kind kind = Kind::kNone;
  uint64_t count = 0;
};

// Compares records with a schema, without decoding them. Not thread-safe.
class RecordCheck {
 public:
  explicit RecordCheck(std::vector<FeatureSpec> schema);
  RecordCheck(const RecordCheck&) = delete;
  RecordCheck& operator=(const RecordCheck&) = delete;

  // Returns nothing if the record fits: a reader of all features of the schema delivers every value
  // of the record. The record may lack optional features.
  std::optional<Misfit> operator()(ByteSpan record);

 private:
  const std::vector<FeatureSpec> schema_;
  FeatureFinder finder_;
  std::vector<ByteSpan> found_;  // the message of each feature
};

}  // namespace cachecd

#endif  // CACHECD_CORE_COLUMNS_H_
