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
#include "convert.h"
#include "example.h"
#include "feature.h"

namespace cachecd {

struct Array {
  Buffer buffer;
  Element element;
  std::vector<int64_t> shape;
};

// Arrays of a column, in this order:
//     dense         values [rows, *row_shape]; padded: [rows, length]
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
constexpr size_t kLargeValue = 1024;

// Not thread-safe.
class ColumnBuilder {
 public:
  // For exactly `rows` rows. `hint`: bytes that the values of an earlier batch took.
  // `spec` must outlive the builder.
  ColumnBuilder(const FeatureSpec& spec, uint64_t rows, size_t hint, BufferPool* pool);

  // The feature of the next row; FeatureView() if the record does not have it. Then, and if it
  // should have values but has no kind, it is the fallback; without one, a ragged list is empty.
  // Large values are only listed in `later`, unless null. SchemaMismatch, MalformedExample,
  // std::bad_alloc.
  void Append(const FeatureView& feature, std::vector<LargeValue>* later);

  // Where a large value belongs, until the next row is appended.
  uint8_t* Place(const LargeValue& value) { return data_.data() + value.at; }
  // By what its bytes get there; if by nothing, as they are.
  const Conversion& conversion() const { return conversion_; }

  // Whether its rows are pictures, which Append only finds: once the record is known to be sound,
  // each is decoded by DecodePicture before the next row. DamagedImage, SchemaMismatch.
  bool has_pictures() const { return spec_.options.image.has_value(); }
  const std::string& name() const { return spec_.name; }
  Extent MeasurePicture(ImageDecoder* decoder) const;
  // EXIF's of the picture measured last.
  int orientation(const ImageDecoder& decoder) const {
    return spec_.raw ? 1 : decoder.orientation();
  }
  void DecodePicture(ImageDecoder* decoder, Extent picture, uint64_t key);

  // How far the column is, and back to there: a row that proves corrupt is taken out again.
  struct Mark {
    uint64_t row;
    uint64_t values;
    size_t used;
  };
  Mark mark() const { return {row_, values_, used_}; }
  void Rollback(const Mark& mark);

  // A row without a record: empty, or as an empty list is padded, or zeros.
  void AppendEmpty();

  // Makes room for `bytes` of values in all, if they have no fixed size.
  void Reserve(size_t bytes) { data_.Grow(used_, bytes); }

  // Bytes of values so far.
  size_t value_bytes() const { return used_; }

  // Adds the column of the rows appended, which must be all of them; after a padded one another,
  // `_NAME_length`, int64 [rows]: how many values of each row are the record's.
  void Finish(std::vector<Column>* columns);

  // SchemaMismatch if the spec's fallback is not a value of the feature.
  static void CheckFallback(const FeatureSpec& spec);

 private:
  ByteSpan OneValue(const FeatureView& feature, const char* expected) const;
  ByteSpan RawValue(const FeatureView& feature) const;
  void AppendRaw(const FeatureView& feature, std::vector<LargeValue>* later);
  void AppendOneHot(const FeatureView& feature);
  void AppendDenseNumbers(const FeatureView& feature);
  void AppendRaggedNumbers(const FeatureView& feature);
  void AppendBytes(const FeatureView& feature, std::vector<LargeValue>* later);
  // Fills up a padded row of which `count` values are there.
  void PadRow(uint64_t count);
  void EndValue();
  void EndRow();
  [[noreturn]] void Misfit(const std::string& found, const std::string& expected) const;

  const FeatureSpec& spec_;
  const uint64_t rows_;
  const size_t element_bytes_;     // as delivered
  uint64_t stored_elements_ = 0;   // of a record, unless ragged
  uint64_t row_elements_ = 0;      // of a row as delivered, if dense
  size_t row_bytes_ = 0;           // the same in bytes
  Conversion conversion_;          // of stored numbers, if they are not delivered as they are
  uint8_t one_[sizeof(uint64_t)];  // one_hot's
  FeatureView fallback_;
  ByteSpan picture_;  // of the row appended last, in the record
  Extent extent_;     // of the rows, if they are pictures
  uint64_t row_ = 0;
  uint64_t values_ = 0;  // elements of a ragged column, or values of bytes
  size_t used_ = 0;      // bytes in data_
  Buffer data_;
  Buffer offsets_;  // of bytes: values_ + 1 ends
  Buffer splits_;   // of ragged: row_ + 1 ends
  Buffer lengths_;  // of padded: row_ numbers of values
};

}  // namespace cachecd

#endif  // CACHECD_CORE_COLUMNS_H_
