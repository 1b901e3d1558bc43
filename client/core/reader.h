// Batches in a fixed order, made ahead by native threads.
//
// A thread claims the next batch and makes the whole of it; batches are delivered in order. No
// thread knows Python. What is made ahead is bounded by bytes. An error is delivered when its
// batch's turn comes and again by every later call; nothing is made beyond it. A delivered Batch
// belongs to the caller and may outlive the reader. All methods may be called from any thread; in
// a forked child every one that needs the threads throws UsageError, and the destructor must not
// be called (forked() tells).

#ifndef CACHECD_CORE_READER_H_
#define CACHECD_CORE_READER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
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
#include "fileset.h"
#include "records.h"
#include "threads.h"

namespace cachecd {

struct ReaderOptions {
  Order order;
  BatchShape shape;  // without `valid`, which follows from `last`
  Last last = Last::kDropped;
  std::optional<Division::Nodes> nodes = {};   // see Division
  std::optional<FileSet::Totals> totals = {};  // see FileSet
  uint64_t start = 0;                          // the first batch to deliver
  uint64_t every = 1;    // from there on: readers that take turns deliver every n-th each
  uint64_t threads = 0;  // 0: as many as are of use
  // What this process may use of its machine: bytes, and where `threads` is 0.
  uint64_t memory = std::numeric_limits<uint64_t>::max();
  uint64_t processors = AvailableProcessors();
  uint64_t prefetch_bytes = 64 << 20;
  bool replace = true;  // a corrupt record, rather than deliver it as an error
};

class BatchReader {
 public:
  // Opens the files and starts the threads. std::invalid_argument and SchemaMismatch for options
  // that cannot be; FileSet's and Division's errors.
  BatchReader(std::vector<FileSet::Input> files, ReaderOptions options);
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;
  ~BatchReader();

  uint64_t num_records() const { return records_->num_records(); }
  // Of this rank in all, those before `start` and those left to others included.
  uint64_t num_batches() const { return division_.steps(); }
  // The batch that is delivered after this one; num_batches() if none is.
  uint64_t After(uint64_t batch) const;
  std::vector<CorruptRecord> findings() const;
  size_t num_findings() const;
  bool forked() const;

  // The next batch if it is ready. Does not wait, but for a mutex that is held for moments.
  // Rethrows the batch's error; UsageError once closed. Its memory counts as made ahead until
  // Delivered says how much is not any more.
  std::optional<Batch> TryNext();

  // How full the queue is after that, 0..1: of the bytes that may be made ahead, those that are; 1
  // if there is nothing left to make.
  double Delivered(size_t memory_bytes);

  // Whether all batches have been taken.
  bool AtEnd() const;

  // Whether its threads have nothing left to do: they have ended, or are about to.
  bool Ended() const;

  // Waits until TryNext has an answer, at most this long.
  void Wait(std::chrono::milliseconds timeout);

  // Ends the threads at the next record and drops what is made ahead; whoever waits gets
  // UsageError. Idempotent. Files stay open, and memory for batches is kept, for Restart.
  void Close();

  // A pass from batch `start` on, as a new reader of the same options, but for the seeds if there
  // are others, would make it; with the files and page tables of the one before. Not while another
  // method runs, but for Close.
  void Restart(uint64_t start, std::optional<uint64_t> seed = {},
               std::optional<uint64_t> augment = {});

 private:
  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  void Start(uint64_t start);
  void Stop();
  void Run();
  double Filled() const;
  bool HasRoom() const;
  bool MayClaim();
  bool IsCalled();
  // Returns when there is something to do, or all ends.
  void AwaitCall(std::unique_lock<std::mutex>* lock);
  Made Make(std::optional<BatchBuilder>* builder, uint64_t number);
  void RequireThreads() const;
  bool Answered() const;

  const uint64_t generation_;
  ReaderOptions options_;  // fixed, but for the seeds
  const FileSet files_;
  std::unique_ptr<RecordSource> records_;  // of the pass
  const std::shared_ptr<BufferPool> pool_;
  const Division division_;

  mutable std::mutex mutex_;       // guards what follows, but for threads_
  std::condition_variable work_;   // something may be claimed, or all ends
  std::condition_variable ready_;  // the next batch is there, or all ends
  std::map<uint64_t, Made> made_;
  uint64_t next_claim_ = 0;
  uint64_t next_delivery_ = 0;
  size_t ahead_bytes_ = 0;   // not delivered yet, and, by estimate, being made
  size_t making_bytes_ = 0;  // of these, by estimate, being made
  bool filling_ = true;      // until there is no room; again at the low mark
  bool watched_ = false;     // one of the threads that wait looks now and then
  size_t estimate_;          // of one batch: the largest of late, at first a guess
  bool measured_ = false;    // estimate_ is no guess any more
  bool failed_ = false;      // nothing more is claimed
  bool closed_ = true;       // until Start

  std::mutex closing_;  // guards threads_ and records_ against two closers
  std::vector<std::thread> threads_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_READER_H_
