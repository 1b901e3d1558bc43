#include "batch.h"

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "example.h"

namespace cachecd {
namespace {

// How many records ahead the cache is warmed: one, as decoding even a small record takes longer
// than a memory access.
constexpr uint64_t kRecordsAhead = 1;

// Entries whose names are remembered; a record may have any number of them.
constexpr size_t kMostSeen = 1024;

template <typename T>
class FixedColumn {
 public:
  FixedColumn(const char* name, Element element, uint64_t rows, BufferPool* pool)
      : column_{name, {}} {
    column_.arrays.push_back(
        {pool->Take(Multiply(rows, sizeof(T))), element, {static_cast<int64_t>(rows)}});
  }
  void Set(uint64_t row, T value) {
    std::memcpy(column_.arrays[0].buffer.data() + row * sizeof(T), &value, sizeof value);
  }
  Column Take() { return std::move(column_); }

 private:
  Column column_;
};

}  // namespace

FeatureFinder::FeatureFinder(const std::vector<FeatureSpec>& features) {
  for (size_t i = 0; i < features.size(); ++i) indices_[features[i].name] = static_cast<int>(i);
}

int FeatureFinder::Find(size_t rank, std::string_view name) {
  if (rank < seen_.size() && seen_[rank].name == name) return seen_[rank].index;
  const auto found = indices_.find(name);
  const int index = found == indices_.end() ? -1 : found->second;
  if (rank < kMostSeen) {
    if (rank >= seen_.size()) seen_.resize(rank + 1);
    seen_[rank] = {std::string(name), index};
  }
  return index;
}

BatchBuilder::BatchBuilder(const BatchShape& shape, RecordSource* records, const FileSet* files,
                           BufferPool* pool)
    : shape_(shape),
      records_(records),
      files_(files),
      pool_(pool),
      finder_(shape.features),
      hints_(shape.features.size(), 0) {}

void BatchBuilder::AppendRecord(ByteSpan payload, const FileSet::Location& at) {
  try {
    found_.assign(shape_.features.size(), {});
    size_t rank = 0;
    ForEachFeature(payload, [&](std::string_view name, ByteSpan feature) {
      const int index = finder_.Find(rank++, name);
      if (index >= 0) found_[static_cast<size_t>(index)] = feature;
    });
    for (size_t i = 0; i < builders_.size(); ++i) {
      // An entry without a value has no kind, like an absent one.
      const FeatureView view =
          found_[i].data == nullptr ? FeatureView() : ParseFeature(found_[i], payload.data);
      builders_[i].Append(view);
    }
  } catch (const std::runtime_error& error) {  // SchemaMismatch, MalformedExample
    throw SchemaMismatch(files_->path(at) + ": record at byte " + std::to_string(at.begin) + ": " +
                         error.what());
  }
}

Batch BatchBuilder::Build(uint64_t number) {
  const uint64_t rows = shape_.batch_size;
  const uint64_t first = number * rows;
  const uint64_t there =
      std::min(rows, records_->positions() - std::min(first, records_->positions()));

  locations_.clear();
  for (uint64_t row = 0; row < there; ++row) locations_.push_back(records_->Locate(first + row));
  builders_.clear();
  for (size_t i = 0; i < shape_.features.size(); ++i) {
    builders_.emplace_back(shape_.features[i], rows, hints_[i], pool_);
  }
  FixedColumn<uint8_t> valid("_valid", Element::kBool, shape_.valid ? rows : 0, pool_);
  FixedColumn<int64_t> shard("_shard", Element::kInt64, shape_.ids ? rows : 0, pool_);
  FixedColumn<int64_t> record("_record", Element::kInt64, shape_.ids ? rows : 0, pool_);

  Batch batch;
  for (uint64_t row = 0; row < rows; ++row) {
    if (row + kRecordsAhead < there) files_->Prefetch(locations_[row + kRecordsAhead]);
    if (row < there) {
      const ByteSpan payload = records_->Read(first + row, &locations_[row]);
      AppendRecord(payload, locations_[row]);
      batch.record_bytes += payload.size;
    } else {
      for (ColumnBuilder& builder : builders_) builder.AppendEmpty();
    }
    if (shape_.valid) valid.Set(row, row < there);
    if (shape_.ids) {
      shard.Set(row, row < there ? static_cast<int64_t>(locations_[row].file) : -1);
      record.Set(row, row < there ? static_cast<int64_t>(locations_[row].index) : -1);
    }
  }

  for (size_t i = 0; i < builders_.size(); ++i) {
    hints_[i] = std::max(hints_[i], builders_[i].value_bytes());
    batch.columns.push_back(builders_[i].Finish());
  }
  if (shape_.valid) batch.columns.push_back(valid.Take());
  if (shape_.ids) {
    batch.columns.push_back(shard.Take());
    batch.columns.push_back(record.Take());
  }
  for (const Column& column : batch.columns) {
    for (const Array& array : column.arrays) batch.memory_bytes += array.buffer.capacity();
  }
  return batch;
}

}  // namespace cachecd
