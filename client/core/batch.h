// Builds one batch of columns: reads, verifies and decodes its records.

#ifndef CACHECD_CORE_BATCH_H_
#define CACHECD_CORE_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "columns.h"
#include "division.h"
#include "exposure.h"
#include "records.h"

namespace cachecd {

struct Batch {
  std::vector<Column> columns;
  uint64_t record_bytes = 0;  // of the payloads
  size_t memory_bytes = 0;    // total capacity of the buffers
  uint64_t zeros = 0;         // zero elements of the columns with count_zeros
};

// The options that all batches of a reader share.
struct BatchShape {
  std::vector<FeatureSpec> features;
  uint64_t batch_size = 0;
  bool valid = false;  // adds "_valid", bool: true if the row holds a record
  bool ids = false;    // adds "_shard" and "_record", int64; -1 in rows without a record
  // Per file, the value of the column "_dataset", int64; -1 in rows without a record. Empty: the
  // column is not added.
  std::vector<int64_t> datasets = {};
  // The seed of augmentation. A picture's crop and flip depend only on this seed and on its
  // record's position in the pass, over all ranks.
  uint64_t augment = 0;
};

// Not thread-safe. The constructor's arguments must outlive the builder.
class BatchBuilder {
 public:
  // `mark` shows what `Build` does.
  BatchBuilder(const BatchShape& shape, RecordSource* records, BufferPool* pool,
               ActivityMark* mark);

  // Builds the batch of these positions; padding rows are zero or empty. Throws CorruptRecord,
  // SchemaMismatch, std::bad_alloc, RecordSource::Stopped.
  Batch Build(const Division::Rows& wanted);

 private:
  // Meanwhile loads `coming` into the processor's cache: the next record's frame, if it is small.
  void AppendRow(uint64_t position, Record* record, ByteSpan coming);
  void Decode(const Record& record, ByteSpan payload, std::vector<LargeValue>* later);
  void AppendVerified(const Record& record, uint64_t key, ByteSpan coming);
  void DecodePictures(const Record& record, ByteSpan payload, uint64_t key);
  void CopyLarge(const Record& record, ByteSpan payload, ByteSpan coming);
  void ReserveFirst(uint64_t bytes, const RecordFile::Frame& first);
  uint32_t CopyConverted(const LargeValue& value, uint32_t crc);

  const BatchShape& shape_;
  RecordSource* const records_;
  BufferPool* const pool_;
  ActivityMark* const mark_;
  FeatureFinder finder_;
  std::vector<size_t> hints_;  // per feature, the expected bytes of values in a batch
  std::vector<ColumnBuilder> builders_;
  RecordSource::Pins pins_;
  std::vector<Record> located_;
  // State of the current row:
  std::vector<ByteSpan> found_;  // the message of each feature
  std::vector<ColumnBuilder::Mark> marks_;
  std::vector<LargeValue> large_;
  std::vector<uint64_t> lost_;  // positions whose records were corrupt
  ImageDecoder decoder_;
  bool has_pictures_ = false;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_BATCH_H_
