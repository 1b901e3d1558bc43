// Opens the files of the blocks that are read, and reads ahead from the disk.
// A block's files are opened when its first record is needed. A thread may open them earlier, and
// make the disk read whole files sequentially. The files are closed when no later position needs
// the block and no thread holds it. So the window limits memory and mappings, for sets of any size.

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

  // Reads ahead after the first MoveTo, unless all files are open at a time and exceed half of
  // `memory` bytes. `files` and `order` must outlive the window. Each time a file that was only
  // counted before is opened, `note` gets its findings.
  Window(const FileSet& files, const RecordOrder& order, uint64_t memory,
         std::function<void(uint32_t file, const Findings&)> note);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

  // Returns the block's files; opens them if necessary. Throws RecordFile's errors.
  std::shared_ptr<const Block> Get(size_t block);

  // Announces that blocks `first` to `last` are needed now. Reads the next block ahead, and
  // releases earlier blocks. Get returns other blocks as well, but does not keep them.
  void MoveTo(size_t first, size_t last);

  // Stops reading ahead, and waits for the last request to the disk, some MB. Threads must not call
  // Stop concurrently.
  void Stop();

 private:
  std::shared_ptr<const Block> Open(size_t block);
  void ReadAhead();

  const FileSet& files_;
  const RecordOrder& order_;
  const std::function<void(uint32_t, const Findings&)> note_;

  std::mutex opening_;  // one thread opens at a time; locked before mutex_
  std::mutex mutex_;    // guards the members below, except thread_
  std::condition_variable moved_;
  std::map<size_t, std::shared_ptr<const Block>> open_;
  bool moved_once_ = false;  // false: no block is needed yet
  size_t first_wanted_ = 0;
  size_t last_wanted_ = 0;
  bool stopped_ = false;

  std::thread thread_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_WINDOW_H_
