#include "window.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "threads.h"

namespace cachecd {

Window::Window(const FileSet& files, const RecordOrder& order, uint64_t memory,
               std::function<void(uint32_t, const Findings&)> note)
    : files_(files), order_(order), note_(std::move(note)) {
  // Blocks that memory cannot keep are not read before they are needed.
  if (order_.num_blocks() == 0 ||
      ((files_.opened() || order_.num_blocks() == 1) && order_.num_bytes() > memory / 2)) {
    return;
  }
  try {
    thread_ = StartThread([this] { ReadAhead(); });
  } catch (const std::system_error&) {
    // Without the thread, each file is read from disk when one of its records is needed.
  }
}

Window::~Window() { Stop(); }

void Window::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  moved_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const Window::Block> Window::Get(size_t block) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(block);
    if (found != open_.end()) return found->second;
  }
  const std::lock_guard<std::mutex> opening(opening_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(block);
    if (found != open_.end()) return found->second;
  }
  auto opened = Open(block);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (block >= first_wanted_ && block <= last_wanted_ + 1) open_.emplace(block, opened);
  return opened;
}

std::shared_ptr<const Window::Block> Window::Open(size_t block) {
  auto opened = std::make_shared<Block>();
  for (const uint32_t file : order_.Files(block)) {
    opened->push_back(files_.Open(file));
    if (files_.opened()) continue;
    note_(file, opened->back()->findings());
  }
  return opened;
}

void Window::MoveTo(size_t first, size_t last) {
  std::vector<std::shared_ptr<const Block>> closed;  // destroyed after the mutex is released
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (moved_once_ && first <= first_wanted_ && last <= last_wanted_) return;
    moved_once_ = true;
    first_wanted_ = std::max(first, first_wanted_);
    last_wanted_ = std::max(last, last_wanted_);
    while (!open_.empty() && open_.begin()->first < first_wanted_) {
      closed.push_back(std::move(open_.begin()->second));
      open_.erase(open_.begin());
    }
  }
  moved_.notify_all();
}

void Window::ReadAhead() {
  for (size_t block = 0; block < order_.num_blocks(); ++block) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      moved_.wait(lock, [&] { return stopped_ || (moved_once_ && block <= last_wanted_ + 1); });
      if (stopped_) return;
      // A pass that begins in the middle needs no block before its start.
      if (block < first_wanted_) continue;
    }
    try {
      const std::shared_ptr<const Block> held = Get(block);
      for (const auto& file : *held) {
        file->ReadAhead([this] {
          const std::lock_guard<std::mutex> lock(mutex_);
          return !stopped_;
        });
      }
    } catch (const std::exception&) {
      // The reader of a record in this block gets the error again and can report it.
    }
  }
}

}  // namespace cachecd
