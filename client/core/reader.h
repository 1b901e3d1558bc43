// Delivers batches in a fixed order, built ahead by native threads.
//
// A thread claims the next batch and builds all of it. No thread uses Python. The bytes of batches
// built ahead are bounded. If a batch fails, its error is thrown in its turn and by every later
// call; no further batches are claimed. A delivered Batch belongs to the caller and may outlive the
// reader. All methods may be called from any thread. In a forked child, methods that need the
// threads throw UsageError. There the destructor must not be called: check forked().

#ifndef CACHECD_CORE_READER_H_
#define CACHECD_CORE_READER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "batch.h"
#include "buffer.h"
#include "division.h"
#include "exposure.h"
#include "fileset.h"
#include "records.h"
#include "threads.h"

namespace cachecd {

struct ReaderOptions {
  Order order;
  BatchShape shape;  // without `valid`, which `last` determines
  Last last = Last::kDropped;
  std::optional<Division::Nodes> nodes = {};   // see Division
  std::optional<FileSet::Totals> totals = {};  // see FileSet
  uint64_t start = 0;                          // the first batch to deliver
  uint64_t every = 1;    // deliver every n-th batch: for readers that take turns
  uint64_t threads = 0;  // 0: as many as are useful
  // What this process may use of its machine: bytes of memory and, if `threads` is 0, processors.
  uint64_t memory = std::numeric_limits<uint64_t>::max();
  uint64_t processors = AvailableProcessors();
  uint64_t prefetch_bytes = 64 << 20;
  bool replace = true;  // replace corrupt records; false: throw CorruptRecord
};

class BatchReader {
 public:
  // Opens the files and starts the threads. Throws std::invalid_argument and SchemaMismatch for
  // invalid options, and the errors of FileSet and Division.
  BatchReader(std::vector<FileSet::Input> files, ReaderOptions options);
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;
  ~BatchReader();

  uint64_t num_records() const { return records_->num_records(); }
  // All batches of this rank, including batches before `start` and batches of other readers.
  uint64_t num_batches() const { return division_.steps(); }
  // Returns the batch delivered after this batch; num_batches() if there is none.
  uint64_t After(uint64_t batch) const;
  std::vector<CorruptRecord> findings() const;
  size_t num_findings() const;
  bool forked() const;

  // Returns the next batch if it is ready. Does not wait, except for a mutex that is held briefly.
  // Rethrows the batch's error; throws UsageError after Close. The batch's memory counts as built
  // ahead until Delivered subtracts it.
  std::optional<Batch> TryNext();

  // Subtracts `memory_bytes` from the bytes built ahead. Returns how full the queue is then.
  double Delivered(size_t memory_bytes);

  // Returns how full the queue is, 0..1: the built bytes, divided by prefetch_bytes; 1 if all
  // batches are built.
  double Filled() const;

  // True if all batches have been taken and the reader is open.
  bool AtEnd() const;

  // True if the threads have no work left: they have ended or are about to end.
  bool Ended() const;

  // Waits until TryNext has a result, at most `timeout`. Meanwhile samples the activity of the
  // thread that builds the next batch, and adds its seconds to `exposed`. Returns the activity at
  // the end, or none if TryNext has a result.
  std::optional<Activity> Wait(std::chrono::milliseconds timeout, Exposed* exposed);

  // Returns when the next batch became ready; the maximum if it is not ready.
  Exposed::Clock::time_point ReadyAt() const;

  // Stops the threads at the next record and discards the batches built ahead. Waiting callers get
  // UsageError. Idempotent. Files stay open and memory for batches is kept, for Restart.
  void Close();

  // Starts a pass at batch `start`, as a new reader with the same options would. New seeds replace
  // the old. Keeps the files and page tables. No other method except Close may run meanwhile.
  void Restart(uint64_t start, std::optional<uint64_t> seed = {},
               std::optional<uint64_t> augment = {});

 private:
  struct Made {
    Batch batch;
    std::exception_ptr error;
    Exposed::Clock::time_point at = {};
  };

  // A reading thread, and the batch that it builds. Each has its own cache line for its mark.
  struct alignas(64) Worker {
    ActivityMark mark;
    uint64_t batch = std::numeric_limits<uint64_t>::max();  // guarded by mutex_
    std::thread thread;
  };

  void Start(uint64_t start);
  void Stop();
  void Run(Worker* worker);
  // These need mutex_.
  Activity Sample() const;
  double Fill() const;
  bool HasRoom() const;
  bool MayClaim();
  bool IsCalled();
  // Returns when a batch may be claimed, or when no more will be.
  void AwaitCall(std::unique_lock<std::mutex>* lock);
  Made Make(std::optional<BatchBuilder>* builder, Worker* worker);
  void RequireThreads() const;
  bool Answered() const;

  const uint64_t generation_;
  ReaderOptions options_;  // fixed, except for the seeds
  const FileSet files_;
  std::unique_ptr<RecordSource> records_;  // of the current pass
  const std::shared_ptr<BufferPool> pool_;
  const Division division_;

  mutable std::mutex mutex_;       // guards the members from here to closing_
  std::condition_variable work_;   // a batch may be claimed, or the threads must end
  std::condition_variable ready_;  // the next batch is ready, or the reader closes
  std::map<uint64_t, Made> made_;
  uint64_t next_claim_ = 0;
  uint64_t next_delivery_ = 0;
  size_t ahead_bytes_ = 0;   // of batches built and not delivered, and making_bytes_
  size_t making_bytes_ = 0;  // estimate for the batches being built
  bool filling_ = true;      // false once there is no room, true again at the low mark
  bool waited_long_ = true;  // the last wait of the trainer
  bool watched_ = false;     // one of the waiting threads polls
  size_t estimate_;          // of one batch: the largest recent batch, at first a guess
  bool measured_ = false;    // estimate_ is not a guess
  bool failed_ = false;      // no more batches are claimed
  bool closed_ = true;       // until Start

  std::mutex closing_;  // guards workers_ and records_ against concurrent Close
  std::deque<Worker> workers_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_READER_H_
