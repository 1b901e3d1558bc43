// The files that are read from at a time, and the disk kept ahead of them.
//
// A block's files are opened when the first record of it is wanted, or before, by a thread that has
// the disk read whole files in one sweep; they are closed when the order has moved on and nobody
// holds the block. So memory and mappings are bounded by the window, whatever the set's size.

#ifndef CACHECD_CORE_WINDOW_H_
#define CACHECD_CORE_WINDOW_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fileset.h"
#include "order.h"

namespace cachecd {

// Thread-safe.
class Window {
 public:
  using Block = std::vector<std::shared_ptr<const RecordFile>>;  // in the order of Files(block)

  using Findings = std::vector<CorruptRecord>;

  // Reads ahead once it is told what is wanted, but for a set of one block of which `memory` bytes
  // cannot keep all. Both must outlive the window. `note` gets what is found damaged in a file that
  // was only counted before, each time that it is opened.
  Window(const FileSet& files, const RecordOrder& order, uint64_t memory,
         std::function<void(uint32_t file, const Findings&)> note);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

  // The block's files, opened now if they are not; RecordFile's errors.
  std::shared_ptr<const Block> Get(size_t block);

  // Blocks `first` to `last` are wanted now: reads ahead the one after them, and lets go of those
  // before them. Whoever asks for others gets them all the same, but they are not kept.
  void MoveTo(size_t first, size_t last);

  // Ends reading ahead: waits for what the disk was asked last, some MB. Not from two threads at
  // once.
  void Stop();

 private:
  std::shared_ptr<const Block> Open(size_t block);
  void ReadAhead();

  const FileSet& files_;
  const RecordOrder& order_;
  const std::function<void(uint32_t, const Findings&)> note_;

  std::mutex opening_;  // one opens at a time; taken before mutex_
  std::mutex mutex_;    // guards what follows
  std::condition_variable moved_;
  std::map<size_t, std::shared_ptr<const Block>> open_;
  bool moved_once_ = false;  // else nothing is wanted yet
  size_t first_wanted_ = 0;
  size_t last_wanted_ = 0;
  bool stopped_ = false;

  std::thread thread_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_WINDOW_H_
