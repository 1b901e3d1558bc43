#include "fileset.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "sidecar.h"
#include "tfrecord.h"
#include "threads.h"

namespace cachecd {
namespace {

// Opening waits for the disk, once or twice a file: as many at a time as a disk takes with profit.
constexpr size_t kOpeners = 8;

constexpr size_t kCacheLine = 64;
// The processor's own prefetcher follows once it has seen a few lines of a stream.
constexpr size_t kPrefetchLines = 8;

}  // namespace

FileSet::FileSet(std::vector<Input> inputs, bool tolerant) : files_(inputs.size()) {
  std::vector<std::exception_ptr> errors(inputs.size());
  std::atomic<size_t> next{0};
  RunThreads(std::min(kOpeners, inputs.size()), [&] {
    for (size_t i = next++; i < inputs.size(); i = next++) {
      try {
        files_[i] = Open(std::move(inputs[i]), tolerant);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  starts_.push_back(0);
  for (const auto& file : files_) {
    starts_.push_back(starts_.back() + file->records);
    num_bytes_ += file->end;
    findings_.insert(findings_.end(), file->findings.begin(), file->findings.end());
  }
}

std::unique_ptr<FileSet::Opened> FileSet::Open(Input input, bool tolerant) {
  auto file = std::make_unique<Opened>(input.path);
  file->end = file->data.size();
  if (input.offsets) {
    UseOffsets(file.get(), std::move(*input.offsets));
  } else {
    UseSidecar(file.get(), tolerant);
  }
  return file;
}

void FileSet::UseOffsets(Opened* file, std::vector<uint64_t> offsets) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] >= file->end || (i != 0 && offsets[i] <= offsets[i - 1])) {
      throw std::invalid_argument(file->data.path() + ": offset " + std::to_string(offsets[i]) +
                                  " of record " + std::to_string(i) +
                                  " does not ascend or lies beyond the file's end");
    }
  }
  file->own_offsets = std::move(offsets);
  file->offsets = reinterpret_cast<const uint8_t*>(file->own_offsets.data());
  file->records = file->own_offsets.size();
}

void FileSet::UseSidecar(Opened* file, bool tolerant) {
  const std::string path = SidecarPath(file->data.path());
  try {
    file->sidecar.emplace(path);
    const int code = file->sidecar->Prefault(0, file->sidecar->size());
    if (code != 0) throw CorruptSidecar(path, std::strerror(EIO));
    const SidecarView view(path, {file->sidecar->data(), file->sidecar->size()});
    const ByteSpan offsets = view.Offsets();
    if (view.data_bytes() != file->data.size()) {
      const std::string why = "it describes " + std::to_string(view.data_bytes()) + " bytes, " +
                              file->data.path() + " has " + std::to_string(file->data.size());
      if (!tolerant) throw CorruptSidecar(path, why);
      file->findings.emplace_back(file->data.path(), std::min(view.data_bytes(), file->data.size()),
                                  "sidecar: " + why);
    }
    file->offsets = offsets.data;
    file->records = view.records();
    file->end = view.data_bytes();
  } catch (const IoError& error) {
    if (error.code != ENOENT) throw;
    Walk(file, tolerant);
  } catch (const CorruptSidecar& error) {
    if (!tolerant) throw;
    file->findings.emplace_back(file->data.path(), 0, "sidecar: " + error.why);
    Walk(file, tolerant);
  }
}

void FileSet::Walk(Opened* file, bool tolerant) {
  const bool has_sidecar = file->sidecar.has_value();
  file->sidecar.reset();
  std::vector<uint64_t> offsets;
  try {
    ScanFile(file->data.path(), false, &offsets);
  } catch (const CorruptRecord& error) {
    if (!tolerant || (offsets.empty() && !has_sidecar)) throw;
    file->findings.emplace_back(error.path, error.offset,
                                error.why + "; what follows in the file is lost");
    file->end = error.offset;
  }
  UseOffsets(file, std::move(offsets));
}

FileSet::Location FileSet::Locate(uint64_t record) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), record);
  const auto number = static_cast<size_t>(after - starts_.begin()) - 1;
  const Opened& file = *files_[number];
  const uint64_t index = record - starts_[number];
  const uint8_t* offset = file.offsets + 8 * index;
  return {static_cast<uint32_t>(number), index, LoadU64(offset),
          index + 1 < file.records ? LoadU64(offset + 8) : file.end};
}

void FileSet::Prefetch(const Location& at) const {
  const MappedFile& data = files_[at.file]->data;
  const uint64_t end =
      std::min(at.end, std::min(data.size(), at.begin + kPrefetchLines * kCacheLine));
  for (uint64_t line = at.begin; line < end; line += kCacheLine) {
    __builtin_prefetch(data.data() + line);
  }
}

ByteSpan FileSet::Read(const Location& at) const {
  MappedFile& data = files_[at.file]->data;
  // A file may be shorter than its sidecar says.
  if (at.end > data.size() || at.begin > at.end) {
    throw CorruptRecord(data.path(), at.begin,
                        "cut short: the record ends at byte " + std::to_string(at.end) +
                            ", the file at byte " + std::to_string(data.size()));
  }
  if (data.Prefault(at.begin, at.end) != 0) {
    throw CorruptRecord(data.path(), at.begin, std::strerror(EIO));
  }
  ByteSpan payload;
  std::string why;
  if (!ReadFrame({data.data() + at.begin, at.end - at.begin}, &payload, &why)) {
    throw CorruptRecord(data.path(), at.begin, why);
  }
  return payload;
}

}  // namespace cachecd
