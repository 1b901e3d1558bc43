#include "fileset.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <utility>

#include "errors.h"
#include "file.h"
#include "sidecar.h"
#include "threads.h"

namespace cachecd {
namespace {

// Opening waits for the disk, once or twice a file: as many at a time as a disk takes with profit.
constexpr size_t kOpeners = 8;

// Calls `visit(i)` for each i below `count`, several at a time; the first i's error, if any.
template <typename Visit>
void ForEachAtOnce(size_t count, Visit visit) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next{0};
  RunThreads(std::min(kOpeners, count), [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        visit(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

FileSet::FileSet(std::vector<Input> inputs, bool tolerant, uint64_t window)
    : inputs_(std::move(inputs)), tolerant_(tolerant), extents_(inputs_.size()) {
  std::vector<std::shared_ptr<const RecordFile>> opened(inputs_.size());
  ForEachAtOnce(inputs_.size(), [&](size_t i) {
    if (window == 0) {
      opened[i] = OpenNew(i);
    } else {
      extents_[i].bytes = File::Open(inputs_[i].path).Size();
    }
  });
  uint64_t bytes = 0;
  for (const FileExtent& extent : extents_) bytes += extent.bytes;
  if (window != 0) {
    ForEachAtOnce(inputs_.size(), [&](size_t i) {
      if (bytes > window) {
        extents_[i] = Count(inputs_[i]);
      } else {
        opened[i] = OpenNew(i);
      }
    });
  }
  if (bytes <= window || window == 0) {
    for (size_t i = 0; i < opened.size(); ++i) {
      extents_[i] = {opened[i]->num_records(), opened[i]->end()};
    }
    opened_ = std::move(opened);
  }
  for (const FileExtent& extent : extents_) num_bytes_ += extent.bytes;
}

FileExtent FileSet::Count(const Input& input) const {
  const uint64_t bytes = File::Open(input.path).Size();
  if (input.offsets) return {input.offsets->size(), bytes};
  try {
    // The bytes that the file had: others may have seen one whole that was cut short since, and all
    // are to divide the set into the same blocks.
    const SidecarHeader header = ReadSidecarHeader(SidecarPath(input.path));
    return {header.records, header.data_bytes};
  } catch (const IoError& error) {
    if (error.code != ENOENT) throw;
  } catch (const CorruptSidecar&) {
    if (!tolerant_) throw;
  }
  return {RecordFile(input.path, nullptr, tolerant_, input.name).num_records(), bytes};
}

std::shared_ptr<const RecordFile> FileSet::Open(uint32_t file) const {
  if (!opened_.empty()) return opened_[file];
  return OpenNew(file);
}

std::shared_ptr<const RecordFile> FileSet::OpenNew(size_t file) const {
  const Input& input = inputs_[file];
  return std::make_shared<RecordFile>(input.path, input.offsets, tolerant_, input.name);
}

}  // namespace cachecd
