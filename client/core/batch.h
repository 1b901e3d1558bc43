// Makes one batch: reads, verifies and decodes its records into columns.

#ifndef CACHECD_CORE_BATCH_H_
#define CACHECD_CORE_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "columns.h"
#include "division.h"
#include "records.h"

namespace cachecd {

struct Batch {
  std::vector<Column> columns;
  uint64_t record_bytes = 0;  // payloads read for it
  size_t memory_bytes = 0;    // capacity of its buffers
};

// What every batch of a reader is made of.
struct BatchShape {
  std::vector<FeatureSpec> features;
  uint64_t batch_size = 0;
  bool valid = false;  // the column "_valid", bool: whether a row is a record
  bool ids = false;    // the columns "_shard" and "_record", int64; -1 in rows without a record
  // Of each file, what the column "_dataset" says, int64; -1 as above. None: no such column.
  std::vector<int64_t> datasets = {};
  // From this and a record's place in the pass, over all ranks, follow the crop and the flip of the
  // record's pictures.
  uint64_t augment = 0;
};

// Which of the features asked for a name is. Records list theirs in much the same order, so the
// answer is mostly the one that the previous record's entry of the same rank got.
class FeatureFinder {
 public:
  // The names must outlive the finder.
  explicit FeatureFinder(const std::vector<FeatureSpec>& features);

  // The feature's index, or -1. `rank`: how many entries of the record came before.
  int Find(size_t rank, std::string_view name);

 private:
  struct Seen {
    std::string name;
    int index;
  };

  std::unordered_map<std::string_view, int> indices_;
  std::vector<Seen> seen_;
};

// Each thread has its own; what it refers to must outlive it.
class BatchBuilder {
 public:
  BatchBuilder(const BatchShape& shape, RecordSource* records, BufferPool* pool);

  // Of these positions; rows that are padded are zero or empty. CorruptRecord, SchemaMismatch,
  // std::bad_alloc, RecordSource::Stopped.
  Batch Build(const Division::Rows& wanted);

 private:
  // `coming`, the next record's frame if it is small, is loaded into the processor's cache
  // meanwhile.
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
  FeatureFinder finder_;
  std::vector<size_t> hints_;  // per feature, the bytes of values that a batch may well have
  std::vector<ColumnBuilder> builders_;
  RecordSource::Pins pins_;
  std::vector<Record> located_;
  // Of one record:
  std::vector<ByteSpan> found_;  // per feature
  std::vector<ColumnBuilder::Mark> marks_;
  std::vector<LargeValue> large_;
  std::vector<uint64_t> lost_;  // positions whose records were corrupt
  ImageDecoder decoder_;
  bool has_pictures_ = false;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_BATCH_H_
