#include "fileset.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "errors.h"
#include "file.h"
#include "sidecar.h"
#include "threads.h"

namespace cachecd {
namespace {

// Opening a file waits for the disk once or twice; disks gain from this many requests at a time.
constexpr size_t kOpeners = 8;

// Calls `visit(i)` for each i below `count`, several at a time; rethrows the lowest i's error.
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

// Adds `missing`, in equal parts, to the counts that may be too low.
void Spread(uint64_t missing, const std::vector<uint64_t*>& over) {
  for (size_t i = 0; i < over.size(); ++i) {
    *over[i] += missing / over.size() + (i < missing % over.size() ? 1 : 0);
  }
}

}  // namespace

FileSet::FileSet(std::vector<Input> inputs, bool tolerant, uint64_t window,
                 std::optional<Totals> totals)
    : inputs_(std::move(inputs)),
      tolerant_(tolerant),
      known_(totals.has_value()),
      extents_(inputs_.size()) {
  uint64_t bytes = 0;
  if (totals) {
    bytes = totals->bytes;
  } else if (window != 0) {
    std::vector<uint64_t> sizes(inputs_.size());
    ForEachAtOnce(inputs_.size(), [&](size_t i) { sizes[i] = File::Open(inputs_[i].path).Size(); });
    bytes = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  }
  const bool open = window == 0 || bytes <= window;
  std::vector<std::shared_ptr<const RecordFile>> opened(inputs_.size());
  std::vector<Counted> counted(inputs_.size());
  ForEachAtOnce(inputs_.size(), [&](size_t i) {
    if (open) {
      opened[i] = OpenNew(i);
      counted[i] = CountOpened(*opened[i]);
    } else {
      counted[i] = Count(i);
    }
  });
  const auto is_there = [](const Counted& one) { return one.lost.empty(); };
  if (!counted.empty() && std::none_of(counted.begin(), counted.end(), is_there)) {
    throw CorruptRecord(inputs_[0].path, 0, counted[0].lost);
  }
  if (totals) Complete(*totals, &counted);
  for (size_t i = 0; i < counted.size(); ++i) extents_[i] = counted[i].extent;
  for (const FileExtent& extent : extents_) num_bytes_ += extent.bytes;
  if (open) opened_ = std::move(opened);
}

void FileSet::Complete(const Totals& totals, std::vector<Counted>* counted) {
  uint64_t records = 0, bytes = 0;
  std::vector<uint64_t*> of_records, of_bytes;
  for (Counted& one : *counted) {
    records += one.extent.records;
    bytes += one.extent.bytes;
    if (!one.records_known) of_records.push_back(&one.extent.records);
    if (!one.bytes_known) of_bytes.push_back(&one.extent.bytes);
  }
  if (totals.records > records) Spread(totals.records - records, of_records);
  if (totals.bytes > bytes) Spread(totals.bytes - bytes, of_bytes);
}

FileSet::Counted FileSet::CountOpened(const RecordFile& file) {
  return {{file.num_records(), file.end()},
          file.counted(),
          file.counted() && !file.lost(),
          file.lost() ? file.findings().front().why : ""};
}

FileSet::Counted FileSet::Count(size_t file) const {
  const Input& input = inputs_[file];
  Counted found;
  try {
    found.extent.bytes = File::Open(input.path).Size();
  } catch (const IoError& error) {
    found.lost = Lost(file, error);
    found.bytes_known = false;
  }
  if (input.offsets) {
    found.extent.records = input.offsets->size();
    return found;
  }
  try {
    // Uses the size before damage. All processes must divide the set into the same blocks, and some
    // may have opened the file before it was cut short.
    const SidecarHeader header = ReadSidecarHeader(SidecarPath(input.path));
    return {{header.records, header.data_bytes}, true, true, found.lost};
  } catch (const IoError& error) {
    if (!error.IsDamage()) throw;
  } catch (const CorruptSidecar&) {
    if (!tolerant_) throw;
  }
  Counted walked = CountOpened(*OpenNew(file));
  if (found.bytes_known) walked.extent.bytes = found.extent.bytes;
  return walked;
}

std::shared_ptr<const RecordFile> FileSet::Open(uint32_t file) const {
  if (!opened_.empty()) return opened_[file];
  return OpenNew(file);
}

std::shared_ptr<const RecordFile> FileSet::OpenNew(size_t file) const {
  const Input& input = inputs_[file];
  std::string why;
  try {
    return std::make_shared<RecordFile>(input.path, input.offsets, tolerant_);
  } catch (const IoError& error) {
    why = Lost(file, error);
  } catch (const CorruptRecord& error) {
    if (!known_ || !tolerant_) throw;
    why = error.why;
  }
  return std::make_shared<RecordFile>(input.offsets, input.path, why);
}

std::string FileSet::Lost(size_t file, const IoError& error) const {
  if (!known_ || !error.IsDamage()) throw error;
  const std::string why = std::string("cannot be opened: ") + std::strerror(error.code);
  if (!tolerant_) throw CorruptRecord(inputs_[file].path, 0, why);
  return why;
}

}  // namespace cachecd
