// The records of several TFRecord files, numbered through.
//
// Files are mapped read-only and located by their sidecars, by offsets that the caller knows, or
// by walking them. Everything is immutable once constructed, so thread-safe; spans are valid as
// long as the FileSet.

#ifndef CACHECD_CORE_FILESET_H_
#define CACHECD_CORE_FILESET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bytes.h"
#include "errors.h"
#include "file.h"

namespace cachecd {

class FileSet {
 public:
  struct Input {
    std::string path;
    std::optional<std::vector<uint64_t>>
        offsets;  // none: the sidecar's, or a walk if there is none
  };

  // Opens all files, several at a time. If `tolerant`, what is damaged costs the records that it
  // makes unreadable and no more, and is listed in findings(): a sidecar that cannot be used is
  // replaced by a walk, a file cut short keeps what is left. Otherwise CorruptSidecar or
  // CorruptRecord for the first file concerned. A file without sidecar that does not start with a
  // record is no TFRecord file: CorruptRecord in any case. IoError; std::invalid_argument for
  // offsets that do not ascend.
  FileSet(std::vector<Input> inputs, bool tolerant);

  uint64_t num_records() const { return starts_.back(); }
  uint64_t num_bytes() const { return num_bytes_; }
  const std::vector<CorruptRecord>& findings() const { return findings_; }

  struct Location {
    uint32_t file;
    uint64_t index;  // within the file
    uint64_t begin;  // of the frame
    uint64_t end;
  };

  // Where `record`, below num_records(), lies.
  Location Locate(uint64_t record) const;

  const std::string& path(const Location& at) const { return files_[at.file]->data.path(); }

  // Starts to load the first bytes into the processor's cache.
  void Prefetch(const Location& at) const;

  // The verified payload; CorruptRecord, also for one that the disk does not give back.
  ByteSpan Read(const Location& at) const;

 private:
  struct Opened {
    explicit Opened(const std::string& path) : data(path) {}

    MappedFile data;
    std::optional<MappedFile> sidecar;
    std::vector<uint64_t> own_offsets;
    const uint8_t* offsets = nullptr;  // u64 each, unaligned; in `sidecar` or `own_offsets`
    uint64_t records = 0;
    uint64_t end = 0;  // of the last frame
    std::vector<CorruptRecord> findings;
  };

  static std::unique_ptr<Opened> Open(Input input, bool tolerant);
  static void UseSidecar(Opened* file, bool tolerant);
  static void Walk(Opened* file, bool tolerant);
  static void UseOffsets(Opened* file, std::vector<uint64_t> offsets);

  std::vector<std::unique_ptr<Opened>> files_;
  std::vector<uint64_t> starts_;  // starts_[f]: number of file f's first record; and the total
  uint64_t num_bytes_ = 0;
  std::vector<CorruptRecord> findings_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILESET_H_
