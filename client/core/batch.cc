#include "batch.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "crc32c.h"
#include "errors.h"
#include "example.h"
#include "mix.h"
#include "sigbus.h"

namespace cachecd {
namespace {

// Returns the number of elements in the first `rows` rows whose bytes are all zero.
uint64_t CountZeros(const Array& array, uint64_t rows) {
  const size_t each = ElementBytes(array.element);
  uint64_t elements = rows;
  for (size_t i = 1; i < array.shape.size(); ++i) elements *= static_cast<uint64_t>(array.shape[i]);
  const uint8_t* const data = array.buffer.data();
  if (each == 1) return static_cast<uint64_t>(std::count(data, data + elements, uint8_t{0}));
  uint64_t zeros = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    const uint8_t* const at = data + i * each;
    zeros += std::all_of(at, at + each, [](uint8_t byte) { return byte == 0; }) ? 1 : 0;
  }
  return zeros;
}

// A record below this size is prefetched into the first- or second-level cache while the previous
// record is read. For larger records, the processor's own prefetching of sequential reads suffices.
constexpr uint64_t kLargeRecord = 32 << 10;

// A page-table walk takes longer than reading a record, but the processor does several at once. So
// the pages of this many records are looked up together. At 4 kB, 8 is fastest of 1, 4, 8 and 16.
constexpr uint64_t kLookUpAtOnce = 8;

// Later records may have this many times the value bytes per frame byte of the first record.
constexpr double kSlack = 1.25;

bool IsLarge(const Record& record) { return record.frame.payload_bytes() >= kLargeRecord; }

// Returns the frame of record `row` if it is small; an empty span otherwise and beyond the last.
ByteSpan SmallFrame(const std::vector<Record>& records, uint64_t row) {
  if (row >= records.size() || IsLarge(records[row])) return {};
  return records[row].file->Raw(records[row].frame);
}

// Looks up the pages of kLookUpAtOnce records from `first` on. Last pages follow all first pages,
// because most of their page-table entries lie beside entries that are then already loaded.
void LookUpPages(const std::vector<Record>& records, uint64_t first) {
  for (const bool last : {false, true}) {
    for (uint64_t row = first; row < first + kLookUpAtOnce; ++row) {
      const ByteSpan frame = SmallFrame(records, row);
      if (frame.size != 0) __builtin_prefetch(last ? frame.end() - 1 : frame.begin());
    }
  }
}

// Bytes converted at a time: few enough to stay in the second-level cache after their CRC.
constexpr size_t kConvertedBytes = 64 << 10;

// Makes the picture keys differ from other keys derived from the same seed.
constexpr uint64_t kPictures = 0x70696374757265;

// Returns the record's own key for error messages, such as " of 'train/1.jpg'"; else "".
std::string OfKey(ByteSpan payload) {
  std::string found;
  try {
    ForEachFeature(payload, [&](std::string_view name, ByteSpan feature) {
      if (name != "key" && name != "__key__") return;
      const FeatureView view = ParseFeature(feature, payload.data);
      if (view.kind != Kind::kBytes) return;
      ForEachBytes(view, [&](ByteSpan key) {
        found = " of '" + std::string(reinterpret_cast<const char*>(key.data), key.size) + "'";
      });
    });
  } catch (const MalformedExample&) {  // the malformed feature was not requested
  }
  return found;
}

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

BatchBuilder::BatchBuilder(const BatchShape& shape, RecordSource* records, BufferPool* pool,
                           ActivityMark* mark)
    : shape_(shape),
      records_(records),
      pool_(pool),
      mark_(mark),
      finder_(shape.features),
      hints_(shape.features.size(), 0) {
  for (const FeatureSpec& feature : shape.features)
    has_pictures_ |= feature.options.image.has_value();
}

void BatchBuilder::Decode(const Record& record, ByteSpan payload, std::vector<LargeValue>* later) {
  try {
    found_.assign(shape_.features.size(), {});
    size_t rank = 0;
    ForEachFeature(payload, [&](std::string_view name, ByteSpan feature) {
      const int index = finder_.Find(rank++, name);
      if (index >= 0) found_[static_cast<size_t>(index)] = feature;
    });
    for (size_t i = 0; i < builders_.size(); ++i) {
      // A map entry without a value has no kind, like an absent feature.
      const FeatureView view =
          found_[i].data == nullptr ? FeatureView() : ParseFeature(found_[i], payload.data);
      builders_[i].Append(view, later);
    }
  } catch (const std::runtime_error& error) {  // SchemaMismatch, MalformedExample
    throw SchemaMismatch(record.file->name() + ": record at byte " +
                         std::to_string(record.frame.begin) + ": " + error.what());
  }
}

// Computes the CRC piece by piece, in the record's order, from the very bytes it delivers.
void BatchBuilder::CopyLarge(const Record& record, ByteSpan payload, ByteSpan coming) {
  std::sort(large_.begin(), large_.end(),
            [](const LargeValue& a, const LargeValue& b) { return a.from.data < b.from.data; });
  uint32_t crc = 0;
  const uint8_t* at = payload.begin();
  for (const LargeValue& value : large_) {
    crc = Crc32c(at, static_cast<size_t>(value.from.begin() - at), crc);
    if (value.column->conversion()) {
      crc = CopyConverted(value, crc);
    } else {
      uint8_t* to = value.column->Place(value);
      crc = CopyWithCrc32c(to, value.from.data, value.from.size, crc, coming);
      coming = {};
    }
    at = value.from.end();
  }
  crc = Crc32c(at, static_cast<size_t>(payload.end() - at), crc, coming);
  record.file->VerifyCrc(record.frame, crc);
}

uint32_t BatchBuilder::CopyConverted(const LargeValue& value, uint32_t crc) {
  const Conversion& conversion = value.column->conversion();
  uint8_t* to = value.column->Place(value);
  for (size_t done = 0; done < value.from.size;) {
    const size_t step = std::min(kConvertedBytes, value.from.size - done);
    const uint8_t* from = value.from.data + done;
    crc = Crc32c(from, step, crc);
    const size_t count = step / conversion.from_bytes();
    conversion(from, count, to);
    to += count * conversion.to_bytes();
    done += step;
  }
  return crc;
}

// Decoding unverified bytes is memory-safe, but its result or error counts only if the CRC matches.
void BatchBuilder::AppendVerified(const Record& record, uint64_t key, ByteSpan coming) {
  BusGuard::Watch(record.file->bytes());
  mark_->Set(Activity::kRead);
  record.file->Bring(record.frame);
  mark_->Set(Activity::kVerify);
  const ByteSpan payload = record.file->Open(record.frame);
  large_.clear();
  try {
    Decode(record, payload, &large_);
  } catch (const SchemaMismatch&) {
    record.file->Verify(record.frame, payload);
    if (BusGuard::Faulted()) record.file->Unreadable(record.frame);
    throw;
  }
  CopyLarge(record, payload, coming);
  std::exception_ptr refused;
  try {
    if (has_pictures_) {
      mark_->Set(Activity::kDecode);
      DecodePictures(record, payload, key);
    }
  } catch (...) {
    refused = std::current_exception();
  }
  if (BusGuard::Disturbed()) {
    if (BusGuard::Faulted()) record.file->Unreadable(record.frame);
    // Another thread may have replaced a page between two reads of it. Replaced pages are never
    // restored, so if the CRC matches now, all earlier reads were correct.
    record.file->Verify(record.frame, payload);
  }
  if (refused) std::rethrow_exception(refused);
}

void BatchBuilder::DecodePictures(const Record& record, ByteSpan payload, uint64_t key) {
  const ColumnBuilder* first = nullptr;
  Extent shared;
  int orientation = 1;
  for (ColumnBuilder& builder : builders_) {
    if (!builder.has_pictures()) continue;
    const auto describe = [&](const std::exception& error) {
      return "feature '" + builder.name() + "'" + OfKey(payload) + ": " + error.what();
    };
    try {
      const Extent picture = builder.MeasurePicture(&decoder_);
      if (first == nullptr) {
        first = &builder;
        shared = picture;
        orientation = builder.orientation(decoder_);
      } else if (picture.height != shared.height || picture.width != shared.width) {
        throw SchemaMismatch("the picture has " + ToText(picture) + ", that of feature '" +
                             first->name() + "' has " + ToText(shared) +
                             ": pictures of one record share their crop, so they need one size");
      } else if (builder.orientation(decoder_) != orientation) {
        throw SchemaMismatch("the picture's orientation is " +
                             std::to_string(builder.orientation(decoder_)) + ", that of feature '" +
                             first->name() + "' is " + std::to_string(orientation) +
                             ": it is unknown which picture must be turned; turn the files");
      }
      builder.DecodePicture(&decoder_, picture, key);
    } catch (const DamagedImage& error) {
      throw CorruptRecord(record.file->name(), record.frame.begin, "picture: " + describe(error));
    } catch (const SchemaMismatch& error) {
      throw SchemaMismatch(record.file->name() + ": record at byte " +
                           std::to_string(record.frame.begin) + ": " + describe(error));
    }
  }
}

void BatchBuilder::AppendRow(uint64_t position, Record* record, ByteSpan coming) {
  marks_.clear();
  for (const ColumnBuilder& builder : builders_) marks_.push_back(builder.mark());
  lost_.clear();
  const uint64_t key = Mix(Mix(shape_.augment ^ kPictures) + kGolden * records_->Global(position));
  for (bool appended = false; !appended;) {
    try {
      AppendVerified(*record, key, coming);
      appended = true;
    } catch (const CorruptRecord& finding) {
      for (size_t i = 0; i < builders_.size(); ++i) builders_[i].Rollback(marks_[i]);
      records_->Replace(finding, &lost_, record, &pins_);
    }
  }
}

// A builder's first batch has no size hint except its first record. Without this reservation,
// columns of large values would be copied each time they double.
void BatchBuilder::ReserveFirst(uint64_t bytes, const RecordFile::Frame& first) {
  const double records =
      kSlack * static_cast<double>(bytes) / static_cast<double>(first.end - first.begin);
  for (size_t i = 0; i < builders_.size(); ++i) {
    if (hints_[i] != 0 || shape_.features[i].is_dense()) continue;
    const double expected = records * static_cast<double>(builders_[i].value_bytes());
    builders_[i].Reserve(static_cast<size_t>(std::min(expected, static_cast<double>(bytes))));
  }
}

Batch BatchBuilder::Build(const Division::Rows& wanted) {
  const uint64_t first = wanted.first;
  const uint64_t there = wanted.there;
  const uint64_t rows = wanted.padded;

  mark_->Set(Activity::kOpen);
  pins_.Clear();
  if (there != 0) records_->MoveTo(first, first + there - 1);
  located_.clear();
  for (uint64_t row = 0; row < there; ++row) {
    records_->CheckStopped();
    located_.push_back(records_->Find(first + row, &pins_));
  }
  mark_->Set(Activity::kRead);
  uint64_t frames = 0;  // bytes
  for (Record& record : located_) {
    records_->CheckStopped();
    record.frame = record.file->Locate(record.index);
    if (!IsLarge(record)) record.file->Bring(record.frame);
    frames += record.file->Raw(record.frame).size;
  }
  mark_->Set(Activity::kAssemble);
  builders_.clear();
  for (size_t i = 0; i < shape_.features.size(); ++i) {
    builders_.emplace_back(shape_.features[i], rows, hints_[i], pool_);
  }
  std::optional<FixedColumn<uint8_t>> valid;
  std::optional<FixedColumn<int64_t>> shard;
  std::optional<FixedColumn<int64_t>> index;
  std::optional<FixedColumn<int64_t>> dataset;
  if (shape_.valid) valid.emplace("_valid", Element::kBool, rows, pool_);
  if (shape_.ids) {
    shard.emplace("_shard", Element::kInt64, rows, pool_);
    index.emplace("_record", Element::kInt64, rows, pool_);
  }
  if (!shape_.datasets.empty()) dataset.emplace("_dataset", Element::kInt64, rows, pool_);

  Batch batch;
  const BusGuard guard;
  const CopyFence fence;
  LookUpPages(located_, 0);
  for (uint64_t row = 0; row < rows; ++row) {
    records_->CheckStopped();
    Record* record = row < there ? &located_[row] : nullptr;
    if (record != nullptr) {
      if (row % kLookUpAtOnce == 0) LookUpPages(located_, row + kLookUpAtOnce);
      AppendRow(first + row, record, SmallFrame(located_, row + 1));
      batch.record_bytes += record->frame.payload_bytes();
      if (row == 0) ReserveFirst(frames, record->frame);
    } else {
      for (ColumnBuilder& builder : builders_) builder.AppendEmpty();
    }
    if (valid) valid->Set(row, record != nullptr);
    if (shape_.ids) {
      shard->Set(row, record != nullptr ? static_cast<int64_t>(record->file_number) : -1);
      index->Set(row, record != nullptr ? static_cast<int64_t>(record->index) : -1);
    }
    if (dataset) {
      dataset->Set(row, record != nullptr ? shape_.datasets[record->file_number] : -1);
    }
  }

  mark_->Set(Activity::kAssemble);
  for (size_t i = 0; i < builders_.size(); ++i) {
    // A hint above twice the batch's size shrinks by a quarter, so that one large batch does not
    // enlarge all later ones. It shrinks no faster, because a column that outgrows it is copied.
    const size_t used = builders_[i].value_bytes();
    if (hints_[i] / 2 > used) hints_[i] -= hints_[i] / 4;
    hints_[i] = std::max(hints_[i], used);
    const size_t column = batch.columns.size();
    builders_[i].Finish(&batch.columns);
    if (shape_.features[i].options.count_zeros) {
      batch.zeros += CountZeros(batch.columns[column].arrays[0], there);
    }
  }
  if (valid) batch.columns.push_back(valid->Take());
  if (shape_.ids) {
    batch.columns.push_back(shard->Take());
    batch.columns.push_back(index->Take());
  }
  if (dataset) batch.columns.push_back(dataset->Take());
  for (const Column& column : batch.columns) {
    for (const Array& array : column.arrays) batch.memory_bytes += array.buffer.capacity();
  }
  return batch;
}

}  // namespace cachecd
