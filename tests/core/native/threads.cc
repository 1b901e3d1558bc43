// Uses readers from several threads, as trainers do and as they should not: for sanitizers, which
// tell what went wrong in between.
//
//     threads [ROUNDS]        every scenario so many times

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "example.h"
#include "harness.h"
#include "reader.h"
#include "writer.h"

namespace cachecd::native {
namespace {

constexpr uint64_t kFiles = 3;
constexpr uint64_t kRecordsPerFile = 120;
constexpr uint64_t kRecords = kFiles * kRecordsPerFile;

Bytes Record(int64_t number) {
  const std::string name(static_cast<size_t>(20 + number % 7 * 40), 'n');
  std::vector<int64_t> list(static_cast<size_t>(number % 5), number);
  std::vector<FeatureValue> features(3);
  features[0].name = "label";
  features[0].kind = Kind::kInt64;
  features[0].ints = &number;
  features[0].count = 1;
  features[1].name = "list";
  features[1].kind = Kind::kInt64;
  features[1].ints = list.data();
  features[1].count = list.size();
  features[2].name = "name";
  features[2].kind = Kind::kBytes;
  features[2].bytes = {{reinterpret_cast<const uint8_t*>(name.data()), name.size()}};
  Bytes bytes(PlanExample(&features));
  WriteExample(features, bytes.data());
  return bytes;
}

// Shards of records numbered through; a byte of every `spoil`-th is altered, unless 0.
std::vector<FileSet::Input> Shards(const std::string& name, uint64_t spoil) {
  std::vector<FileSet::Input> inputs;
  for (uint64_t file = 0; file < kFiles; ++file) {
    const std::string path = ScratchPath(name + std::to_string(file));
    std::vector<uint64_t> spoilt;
    ShardWriter writer(path, 0);
    for (uint64_t i = 0; i < kRecordsPerFile; ++i) {
      const uint64_t number = file * kRecordsPerFile + i;
      if (spoil != 0 && number % spoil == 0) spoilt.push_back(writer.num_bytes() + 20);
      EXPECT(
          writer.Append(Span(Record(static_cast<int64_t>(number))), 1, static_cast<uint32_t>(i)));
    }
    writer.Finish("{}");
    Bytes bytes = ReadFile(path);
    for (const uint64_t at : spoilt) bytes[at] ^= 1;
    WriteFile(path, Span(bytes));
    inputs.push_back({path, {}});
  }
  return inputs;
}

const std::vector<FileSet::Input>& Good() {
  static const std::vector<FileSet::Input> inputs = Shards("good", 0);
  return inputs;
}

constexpr uint64_t kSpoil = 10;

const std::vector<FileSet::Input>& Spoilt() {
  static const std::vector<FileSet::Input> inputs = Shards("spoilt", kSpoil);
  return inputs;
}

ReaderOptions Options(uint64_t batch_size, uint64_t threads) {
  ReaderOptions options;
  options.order.seed = 5;
  options.shape.batch_size = batch_size;
  options.shape.features = {FeatureSpec::Make("label", "int64", "int64", false, {}, false),
                            FeatureSpec::Make("list", "int64", "int64", true, {}, false),
                            FeatureSpec::Make("name", "bytes", "bytes", false, {}, false)};
  options.shape.ids = true;
  options.threads = threads;
  options.prefetch_bytes = 20000;  // a few batches: threads wait for the consumer
  return options;
}

constexpr auto kPatience = std::chrono::seconds(60);

std::optional<Batch> Next(BatchReader* reader) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    std::optional<Batch> batch = reader->TryNext();
    if (batch) reader->Delivered(batch->memory_bytes);
    if (batch || reader->AtEnd()) return batch;
    Exposed exposed;
    reader->Wait(std::chrono::milliseconds(1000), &exposed);
    EXPECT(std::chrono::steady_clock::now() < deadline);
  }
}

std::vector<int64_t> Labels(const Batch& batch) {
  const Array& array = batch.columns[0].arrays[0];
  std::vector<int64_t> labels;
  for (int64_t row = 0; row < array.shape[0]; ++row) {
    labels.push_back(static_cast<int64_t>(LoadU64(array.buffer.data() + 8 * row)));
  }
  return labels;
}

std::vector<int64_t> ReadAll(const std::vector<FileSet::Input>& files,
                             const ReaderOptions& options) {
  BatchReader reader(files, options);
  std::vector<int64_t> labels;
  while (const std::optional<Batch> batch = Next(&reader)) {
    for (const int64_t label : Labels(*batch)) labels.push_back(label);
  }
  return labels;
}

// Several consumers share a reader; some keep what they get, and drop it elsewhere and later.
void BatchesAreKeptAndDroppedAnywhere() {
  std::vector<Batch> kept;
  std::multiset<int64_t> seen;
  {
    BatchReader reader(Good(), Options(6, 3));
    std::mutex mutex;
    std::vector<std::thread> consumers;
    for (int consumer = 0; consumer < 3; ++consumer) {
      consumers.emplace_back([&, consumer] {
        Random chance(static_cast<uint64_t>(consumer));
        while (std::optional<Batch> batch = Next(&reader)) {
          const std::vector<int64_t> labels = Labels(*batch);
          const std::lock_guard<std::mutex> lock(mutex);
          seen.insert(labels.begin(), labels.end());
          if (chance.OneIn(3)) kept.push_back(std::move(*batch));
          if (kept.size() > 8) kept.erase(kept.begin());
        }
      });
    }
    for (std::thread& consumer : consumers) consumer.join();
  }
  EXPECT(seen.size() == kRecords && seen.count(0) == 1 && seen.count(kRecords - 1) == 1);
  for (const Batch& batch : kept) EXPECT(Labels(batch).size() == 6);  // the reader is gone
}

// Close from another thread, while the consumer waits or takes.
void ClosingInMidEpochEndsWhoeverWaits() {
  for (uint64_t delay = 0; delay < 6; ++delay) {
    BatchReader reader(Good(), Options(2, 2));
    std::atomic<uint64_t> taken{0};
    std::thread closer([&] {
      while (taken.load() < delay * 4) std::this_thread::yield();
      reader.Close();
      reader.Close();
    });
    bool closed = false;
    try {
      while (const std::optional<Batch> batch = Next(&reader)) {
        EXPECT(Labels(*batch).size() == 2);
        ++taken;
      }
    } catch (const UsageError&) {
      closed = true;
    }
    closer.join();
    EXPECT(closed || taken.load() == kRecords / 2);
  }
}

// What is corrupt is replaced, and can be asked for meanwhile.
void CorruptRecordsAreReplacedWhileSomebodyAsks() {
  BatchReader reader(Spoilt(), Options(4, 4));
  std::atomic<bool> done{false};
  std::thread asker([&] {
    while (!done.load()) {
      EXPECT(reader.findings().size() <= kRecords / kSpoil);
      EXPECT(reader.num_findings() <= kRecords / kSpoil);
      std::this_thread::yield();
    }
  });
  uint64_t rows = 0;
  while (const std::optional<Batch> batch = Next(&reader)) {
    for (const int64_t label : Labels(*batch)) {
      EXPECT(static_cast<uint64_t>(label) % kSpoil != 0);
      ++rows;
    }
  }
  done.store(true);
  asker.join();
  EXPECT(rows == kRecords && reader.findings().size() == kRecords / kSpoil);
}

// From wherever the pass is, the next one is as a new reader would make it; batches of the pass
// before are still held.
void RestartingBeginsAnew(uint64_t window) {
  constexpr uint64_t kBatchSize = 7;
  ReaderOptions options = Options(kBatchSize, 3);
  options.order.window = window;
  const std::vector<int64_t> expected = ReadAll(Spoilt(), options);
  const uint64_t batches = kRecords / kBatchSize;
  EXPECT(expected.size() == batches * kBatchSize);
  std::vector<Batch> held;
  BatchReader reader(Spoilt(), options);
  for (const uint64_t taken : {batches, uint64_t{0}, uint64_t{1}, batches / 2, batches, batches}) {
    const uint64_t start = taken % 4;
    reader.Restart(start);
    for (uint64_t number = start; number < taken; ++number) {
      std::optional<Batch> batch = Next(&reader);
      EXPECT(batch);
      const auto from = expected.begin() + static_cast<ptrdiff_t>(number * kBatchSize);
      EXPECT(Labels(*batch) == std::vector<int64_t>(from, from + kBatchSize));
      held.push_back(std::move(*batch));
    }
    if (taken == batches) EXPECT(!Next(&reader) && reader.AtEnd());
  }
  reader.Close();
  reader.Restart(batches - 1);
  EXPECT(Next(&reader) && !Next(&reader));
}

// Readers that hardly begin, and readers side by side on the same files.
void ManySmallPasses() {
  std::vector<std::thread> trainers;
  for (uint64_t trainer = 0; trainer < 2; ++trainer) {
    trainers.emplace_back([trainer] {
      for (uint64_t pass = 0; pass < 12; ++pass) {
        ReaderOptions options = Options(5, 1 + pass % 4);
        options.order.rank = trainer;
        options.order.world = 2;
        options.start = pass % 3;
        BatchReader reader(pass % 2 == 0 ? Good() : Spoilt(), options);
        for (uint64_t batch = 0; batch < pass % 5; ++batch) EXPECT(Next(&reader));
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

}  // namespace
}  // namespace cachecd::native

int main(int count, char** arguments) {
  using namespace cachecd::native;
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 1;
  EXPECT(rounds > 0);
  for (int round = 0; round < rounds; ++round) {
    BatchesAreKeptAndDroppedAnywhere();
    ClosingInMidEpochEndsWhoeverWaits();
    CorruptRecordsAreReplacedWhileSomebodyAsks();
    RestartingBeginsAnew(0);
    RestartingBeginsAnew(10000);  // less than a file: each is opened and closed in its turn
    ManySmallPasses();
  }
  std::printf("%d rounds\n", rounds);
  return 0;
}
