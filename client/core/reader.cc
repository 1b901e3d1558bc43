#include "reader.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "errors.h"
#include "fork.h"
#include "threads.h"

namespace cachecd {
namespace {

// No trainer needs more threads than this, and every rank of a node has its own.
constexpr uint64_t kMostDefaultThreads = 4;

// Threads resume when the bytes ahead sink to this part of the limit, not after every batch.
constexpr size_t kLowMark = 2;

// Waking a thread costs the trainer 40 us, and more if the thread takes the trainer's processor. So
// one waiting thread polls how much is ahead: at first every kLookAgain, less often while no batch
// is taken. Below the urgent mark, or if the trainer has to wait, the trainer wakes the threads.
constexpr auto kLookAgain = std::chrono::milliseconds(2);
constexpr auto kLookAtLeast = std::chrono::milliseconds(64);
constexpr size_t kUrgentMark = 8;

// A trainer samples this often what it waits for, if its last wait was at least as long. On a
// virtual machine, a timer of 2 ms cost 5 us for each wait, which short waits do not pay: they have
// one sample, at their begin.
constexpr auto kSampleEvery = std::chrono::milliseconds(2);

ReaderOptions Checked(ReaderOptions options) {
  const Order& order = options.order;
  if (options.shape.batch_size == 0) throw std::invalid_argument("batch_size is 0, expected >= 1");
  if (order.world == 0 || order.rank >= order.world) {
    throw std::invalid_argument("rank " + std::to_string(order.rank) + " of " +
                                std::to_string(order.world) + ", expected 0 <= rank < world");
  }
  if (options.every == 0) throw std::invalid_argument("every is 0, expected >= 1");
  options.shape.valid = options.last == Last::kPadded;
  std::set<std::string> names;
  if (options.shape.valid) names.insert("_valid");
  if (options.shape.ids) names.insert({"_shard", "_record"});
  if (!options.shape.datasets.empty()) names.insert("_dataset");
  for (const FeatureSpec& feature : options.shape.features) {
    if (feature.is_unsized() && options.shape.valid) {
      RefuseFeature(feature.name,
                    "rows without a record need a shape: give a pair as size, or a crop");
    }
    for (const std::string& name : feature.columns()) {
      if (!names.insert(name).second) {
        throw SchemaMismatch("feature '" + feature.name + "': two columns have the name '" + name +
                             "'");
      }
    }
  }
  return options;
}

// Estimates the bytes of a batch before the first is made, from the mean size of a record and the
// size of decoded pictures.
size_t FirstEstimate(uint64_t bytes, uint64_t records, const BatchShape& shape) {
  uint64_t mean = bytes / std::max<uint64_t>(1, records);
  for (const FeatureSpec& feature : shape.features) {
    if (feature.options.image) mean += Multiply(feature.row_shape());
  }
  size_t estimate;
  return __builtin_mul_overflow(mean, shape.batch_size, &estimate) ? SIZE_MAX / 2 : estimate;
}

}  // namespace

BatchReader::BatchReader(std::vector<FileSet::Input> files, ReaderOptions options)
    : generation_(ForkGeneration()),
      options_(Checked(std::move(options))),
      files_(std::move(files), options_.replace, options_.order.window, options_.totals),
      records_(std::make_unique<RecordSource>(files_, options_.order, options_.replace,
                                              options_.memory)),
      pool_(BufferPool::Create(options_.prefetch_bytes)),
      division_(records_->num_records(), options_.shape.batch_size, options_.order.world,
                options_.last, options_.nodes),
      estimate_(FirstEstimate(files_.num_bytes(), records_->num_records(), options_.shape)) {
  Start(options_.start);
}

void BatchReader::Start(uint64_t start) {
  if (start > num_batches()) {
    throw std::invalid_argument("start is " + std::to_string(start) + ", there are " +
                                std::to_string(num_batches()) + " batches");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_claim_ = next_delivery_ = start;
    watched_ = false;
    ahead_bytes_ = making_bytes_ = 0;
    filling_ = true;
    failed_ = false;
    closed_ = false;
  }
  uint64_t threads = options_.threads;
  if (threads == 0) threads = std::clamp(options_.processors, uint64_t{1}, kMostDefaultThreads);
  const uint64_t left = num_batches() - start;
  threads = std::min(threads, left / options_.every + (left % options_.every != 0));
  try {
    for (uint64_t i = 0; i < threads; ++i) {
      Worker* const worker = &workers_.emplace_back();
      worker->thread = StartThread([this, worker] { Run(worker); });
    }
  } catch (...) {
    // One thread suffices; without any, no batch would ever be ready.
    if (!workers_.empty() && !workers_.back().thread.joinable()) workers_.pop_back();
    if (workers_.empty()) throw;
  }
}

void BatchReader::Restart(uint64_t start, std::optional<uint64_t> seed,
                          std::optional<uint64_t> augment) {
  RequireThreads();
  const std::lock_guard<std::mutex> closing(closing_);
  Stop();
  options_.order.seed = seed.value_or(options_.order.seed);
  options_.shape.augment = augment.value_or(options_.shape.augment);
  records_ =
      std::make_unique<RecordSource>(files_, options_.order, options_.replace, options_.memory);
  Start(start);
}

BatchReader::~BatchReader() {
  Close();
  pool_->Close();
}

uint64_t BatchReader::After(uint64_t batch) const {
  return batch + std::min(options_.every, num_batches() - batch);
}

bool BatchReader::forked() const { return generation_ != ForkGeneration(); }

void BatchReader::RequireThreads() const {
  if (forked()) {
    throw UsageError(
        "this reader was made before the process was forked, and its threads are not in the child: "
        "create the loader in the worker");
  }
}

std::vector<CorruptRecord> BatchReader::findings() const {
  RequireThreads();
  return records_->findings();
}

size_t BatchReader::num_findings() const {
  RequireThreads();
  return records_->num_findings();
}

bool BatchReader::AtEnd() const {
  RequireThreads();
  const std::lock_guard<std::mutex> lock(mutex_);
  return !closed_ && next_delivery_ == num_batches();
}

bool BatchReader::Ended() const {
  RequireThreads();
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_ || next_delivery_ == num_batches();
}

bool BatchReader::Answered() const {
  return closed_ || next_delivery_ == num_batches() || made_.count(next_delivery_) != 0;
}

std::optional<Batch> BatchReader::TryNext() {
  RequireThreads();
  std::optional<Batch> batch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) throw UsageError("the reader is closed");
    const auto found = made_.find(next_delivery_);
    if (found == made_.end()) return batch;
    if (found->second.error) std::rethrow_exception(found->second.error);
    batch = std::move(found->second.batch);
    made_.erase(found);
    next_delivery_ = After(next_delivery_);
  }
  return batch;
}

double BatchReader::Delivered(size_t memory_bytes) {
  double filled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ahead_bytes_ -= memory_bytes;
    filled = Fill();
    if (filling_ || ahead_bytes_ > options_.prefetch_bytes / kUrgentMark) return filled;
  }
  work_.notify_one();
  return filled;
}

double BatchReader::Filled() const {
  RequireThreads();
  const std::lock_guard<std::mutex> lock(mutex_);
  return Fill();
}

double BatchReader::Fill() const {
  if (making_bytes_ == 0 && next_claim_ == num_batches()) return 1.0;
  const size_t made = ahead_bytes_ - making_bytes_;
  if (made >= options_.prefetch_bytes) return made == 0 ? 0.0 : 1.0;
  return static_cast<double>(made) / static_cast<double>(options_.prefetch_bytes);
}

std::optional<Activity> BatchReader::Wait(std::chrono::milliseconds timeout, Exposed* exposed) {
  RequireThreads();
  work_.notify_all();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto begin = Exposed::Clock::now();
  const auto every = waited_long_ ? kSampleEvery : timeout;
  auto seen = begin;
  while (!Answered()) {
    const Activity activity = Sample();
    if (seen >= begin + timeout) return activity;
    ready_.wait_until(lock, std::min(begin + timeout, seen + every));
    const auto now = Exposed::Clock::now();
    exposed->Add(activity, seen, now);
    waited_long_ = now >= begin + kSampleEvery;
    seen = now;
  }
  return {};
}

Activity BatchReader::Sample() const {
  for (const Worker& worker : workers_) {
    if (worker.batch == next_delivery_) return worker.mark.Get();
  }
  return Activity::kOther;
}

Exposed::Clock::time_point BatchReader::ReadyAt() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = made_.find(next_delivery_);
  return found == made_.end() ? Exposed::Clock::time_point::max() : found->second.at;
}

void BatchReader::Close() {
  RequireThreads();
  const std::lock_guard<std::mutex> closing(closing_);
  Stop();
}

void BatchReader::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  records_->Stop();
  work_.notify_all();
  ready_.notify_all();
  for (Worker& worker : workers_) worker.thread.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  workers_.clear();
  made_.clear();
}

bool BatchReader::HasRoom() const {
  // One batch is always made ahead, whatever its size.
  return ahead_bytes_ == 0 || ahead_bytes_ + estimate_ <= options_.prefetch_bytes;
}

bool BatchReader::MayClaim() {
  if (failed_ || next_claim_ == num_batches()) return false;
  const bool low = ahead_bytes_ <= options_.prefetch_bytes / kLowMark;
  filling_ = (filling_ || low) && HasRoom();
  return filling_;
}

bool BatchReader::IsCalled() {
  return closed_ || failed_ || next_claim_ == num_batches() || MayClaim();
}

void BatchReader::AwaitCall(std::unique_lock<std::mutex>* lock) {
  if (watched_) {
    work_.wait(*lock, [this] { return IsCalled() || !watched_; });
  }
  if (watched_) return;
  watched_ = true;
  auto pause = kLookAgain;
  while (!IsCalled()) {
    const uint64_t seen = next_delivery_;
    work_.wait_for(*lock, pause);
    pause = next_delivery_ == seen ? std::min(2 * pause, kLookAtLeast) : kLookAgain;
  }
  watched_ = false;
}

BatchReader::Made BatchReader::Make(std::optional<BatchBuilder>* builder, Worker* worker) {
  try {
    if (!*builder) builder->emplace(options_.shape, records_.get(), pool_.get(), &worker->mark);
    return {(*builder)->Build(division_.Batch(worker->batch, options_.order.rank)), nullptr,
            Exposed::Clock::now()};
  } catch (...) {
    return {Batch(), std::current_exception(), Exposed::Clock::now()};
  }
}

void BatchReader::Run(Worker* worker) {
  std::optional<BatchBuilder> builder;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    AwaitCall(&lock);
    if (closed_ || failed_ || next_claim_ == num_batches()) return;
    const uint64_t number = worker->batch = next_claim_;
    next_claim_ = After(number);
    const size_t estimated = estimate_;
    ahead_bytes_ += estimated;
    making_bytes_ += estimated;
    const bool more = MayClaim();
    lock.unlock();
    if (more) work_.notify_one();
    Made made = Make(&builder, worker);
    lock.lock();
    if (made.error) failed_ = true;
    ahead_bytes_ += made.batch.memory_bytes - estimated;
    making_bytes_ -= estimated;
    // The estimate decays, so that one large batch does not raise it for all later batches.
    estimate_ = std::max(made.batch.memory_bytes, measured_ ? estimate_ - estimate_ / 8 : 0);
    measured_ = true;
    made_.emplace(number, std::move(made));
    if (failed_ || next_claim_ == num_batches()) work_.notify_all();
    if (number == next_delivery_) ready_.notify_all();
  }
}

}  // namespace cachecd
