// A hostile TFRecord file, and a sidecar or none, through a whole BatchReader.
//
// Every row delivered is compared with what the files say at the place where it claims to come
// from.

#include "reader.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../native/harness.h"
#include "columns_check.h"
#include "errors.h"
#include "fuzzer.h"
#include "memory.h"
#include "mutate.h"
#include "reader_setting.h"
#include "reference.h"
#include "sidecar.h"

namespace cachecd::native {
namespace {

constexpr size_t kFixed = 8 << 20;
constexpr size_t kTimes = 128;

int64_t Id(const Column& column, uint64_t row) {
  return static_cast<int64_t>(LoadU64(column.arrays[0].buffer.data() + 8 * row));
}

// The records of a batch, in its order; every row is what its record says.
std::vector<uint64_t> Delivered(const Batch& batch, const Setting& setting,
                                const Expected& expected) {
  size_t columns = 0;
  const auto rows = static_cast<uint64_t>(batch.columns.back().arrays[0].shape[0]);
  EXPECT(rows == setting.batch_size ||
         (setting.last == Last::kShort && rows != 0 && rows < setting.batch_size));
  for (const FeatureSpec& spec : setting.specs()) {
    ExpectSound(&batch.columns[columns], spec, rows);
    columns += NumColumns(spec);
    EXPECT(columns < batch.columns.size());
  }
  const size_t ids = columns + (setting.padded() ? 1 : 0);
  EXPECT(batch.columns.size() == ids + 2 && batch.columns[ids].name == "_shard");
  std::vector<uint64_t> records;
  for (uint64_t row = 0; row < rows; ++row) {
    const bool valid =
        !setting.padded() || batch.columns[columns].arrays[0].buffer.data()[row] != 0;
    const int64_t shard = Id(batch.columns[ids], row);
    const int64_t record = Id(batch.columns[ids + 1], row);
    EXPECT(valid ? shard == 0 && record >= 0 : shard == -1 && record == -1);
    std::optional<ReferenceExample> example;
    if (valid) {
      EXPECT(static_cast<size_t>(record) < expected.good.size());
      EXPECT(expected.good[static_cast<size_t>(record)]);
      example = expected.Parse(static_cast<size_t>(record));
      records.push_back(static_cast<uint64_t>(record));
      if (!example) continue;  // what was not asked for does not parse
      EXPECT(FitsAll(setting, example));
    }
    const Column* column = batch.columns.data();
    for (const FeatureSpec& spec : setting.specs()) {
      if (valid) {
        ExpectRow(column, spec, row, FeatureOf(*example, spec));
      } else {
        ExpectEmptyRow(column, spec, row);
      }
      column += NumColumns(spec);
    }
  }
  return records;
}

std::optional<Batch> Next(BatchReader* reader) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (true) {
    std::optional<Batch> batch = reader->TryNext();
    if (batch) reader->Delivered(batch->memory_bytes);
    if (batch || reader->AtEnd()) return batch;
    Exposed exposed;
    reader->Wait(std::chrono::milliseconds(1000), &exposed);
    EXPECT(std::chrono::steady_clock::now() < deadline);
  }
}

// A pass that came to its end, over a rank's share of all records.
void ExpectWhole(const Setting& setting, const Expected& expected, const BatchReader& reader,
                 const std::vector<std::vector<uint64_t>>& batches) {
  std::vector<uint64_t> delivered;
  for (const auto& batch : batches) delivered.insert(delivered.end(), batch.begin(), batch.end());
  const uint64_t records = expected.good.size();
  const uint64_t mine = records / setting.world + (setting.rank < records % setting.world);
  EXPECT(!expected.refused_later || delivered.empty());
  const uint64_t least = records / setting.world / setting.batch_size * setting.batch_size;
  EXPECT(delivered.size() == (setting.last == Last::kDropped ? least : mine));
  const auto bad =
      static_cast<uint64_t>(std::count(expected.good.begin(), expected.good.end(), false));
  const std::vector<CorruptRecord> findings = reader.findings();
  if (bad == 0) {
    if (!setting.shuffle) {
      for (uint64_t i = 0; i < delivered.size(); ++i) {
        EXPECT(delivered[i] == i * setting.world + setting.rank);
      }
    }
    std::sort(delivered.begin(), delivered.end());
    EXPECT(std::adjacent_find(delivered.begin(), delivered.end()) == delivered.end());
  }
  if (setting.world == 1 && setting.last != Last::kDropped) {
    // Each corrupt record was found, what concerns the whole file was told, and nothing else.
    std::set<uint64_t> found;
    for (const CorruptRecord& finding : findings) found.insert(finding.offset);
    for (uint64_t i = 0; i < records; ++i) {
      EXPECT(expected.good[i] || found.count(expected.begins[i]) != 0);
    }
    EXPECT(findings.size() <= bad + (expected.whole ? 0 : 2));
    EXPECT(delivered.empty() || findings.size() >= bad + (expected.whole ? 0 : 1));
  }
}

struct Pass {
  std::vector<std::vector<uint64_t>> batches;  // the records of each
  std::string error;                           // which ended it

  bool operator==(const Pass& other) const {
    return batches == other.batches && error == other.error;
  }
};

Pass ReadPass(const Setting& setting, const std::string& path, const Expected& expected,
              BatchReader* reader) {
  Pass pass;
  try {
    while (std::optional<Batch> batch = Next(reader)) {
      pass.batches.push_back(Delivered(*batch, setting, expected));
    }
    ExpectWhole(setting, expected, *reader, pass.batches);
  } catch (const CorruptRecord& error) {
    // Not replaced: because that was asked for, or because no good one is left.
    const auto at = std::find(expected.begins.begin(), expected.begins.end(), error.offset);
    EXPECT(at != expected.begins.end());
    EXPECT(!expected.good[static_cast<size_t>(at - expected.begins.begin())]);
    EXPECT(error.path == path);
    if (setting.replace && setting.world == 1) {
      EXPECT(std::count(expected.good.begin(), expected.good.end(), true) == 0);
    }
    pass.error = std::to_string(error.offset) + error.why;
  } catch (const CorruptSidecar& error) {
    EXPECT(expected.refused_later && pass.batches.empty());
    pass.error = error.why;
  } catch (const SchemaMismatch& error) {
    bool misfit = false;
    for (size_t i = 0; i < expected.good.size() && !misfit; ++i) {
      misfit = expected.good[i] && !FitsAll(setting, expected.Parse(i));
    }
    EXPECT(misfit);
    pass.error = error.what();
  }
  return pass;
}

// Whether each rank has a record for each of its batches.
bool Divides(const Setting& setting, uint64_t records) {
  if (setting.last != Last::kShort) return true;
  const uint64_t step = setting.world * setting.batch_size;
  return records / setting.world >= (records + step - 1) / step;
}

void Read(const Setting& setting, const std::string& path) {
  const Expected expected(setting);
  bool opened = false;
  try {
    BatchReader reader({{path, {}}}, setting.options());
    opened = true;
    EXPECT(!expected.refused && reader.num_records() == expected.good.size());
    Pass pass = ReadPass(setting, path, expected, &reader);
    if (!setting.restart) return;
    reader.Restart(0);
    EXPECT(ReadPass(setting, path, expected, &reader) == pass);
  } catch (const std::invalid_argument&) {
    EXPECT(!opened && !Divides(setting, expected.good.size()));
  } catch (const CorruptRecord&) {
    EXPECT(!opened && expected.refused);
  } catch (const CorruptSidecar&) {
    EXPECT(!opened && expected.refused && setting.has_sidecar);
  }
}

}  // namespace
}  // namespace cachecd::native

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachecd::native;
  if (size < kHead) return 0;
  PrepareSpecs();
  const MemoryWatch watch;
  const Setting setting(Bytes(data, data + size));
  const std::string path = ScratchPath("data");
  WriteFile(path, Span(setting.data));
  const std::string sidecar = cachecd::SidecarPath(path);
  std::remove(sidecar.c_str());
  if (setting.has_sidecar) WriteFile(sidecar, Span(setting.sidecar));
  Read(setting, path);
  EXPECT(watch.Peak() <= kFixed + kTimes * size);
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  using namespace cachecd::native;
  if (size < kHead || most < kHead) return LLVMFuzzerMutate(data, size, most);
  Random chance(seed);
  Setting setting(Bytes(data, data + size));
  const uint64_t what = chance.Below(8);
  if (what == 0) {
    Bytes head(data, data + 2);
    head[chance.Below(2)] = static_cast<uint8_t>(chance.Next());
    return Replace(head, data, 2) + size - 2;
  }
  if (what < 5) {
    MutateBytes(&setting.data, most - kHead);
    if (!chance.OneIn(3)) MendFrames(&setting.data, &chance);
  } else {
    MutateBytes(&setting.sidecar, std::min<size_t>(most - kHead, UINT16_MAX));
    if (!chance.OneIn(4)) MendSidecar(&setting.sidecar, &chance);
  }
  return Replace(setting.Joined(), data, most);
}
