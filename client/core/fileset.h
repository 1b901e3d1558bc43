// Opens several TFRecord files and counts the records of each.

#ifndef CACHECD_CORE_FILESET_H_
#define CACHECD_CORE_FILESET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "order.h"
#include "recordfile.h"

namespace cachecd {

// Immutable once constructed, so thread-safe.
class FileSet {
 public:
  struct Input {
    std::string path;
    Offsets offsets;  // null: use the sidecar or, if there is none, walk the file
  };

  struct Totals {
    uint64_t records;
    uint64_t bytes;
  };

  // Inspects all files, several at a time. If all their bytes fit into `window` (0: always), the
  // files are opened and stay open. Otherwise records are only counted, with sidecars or by walks,
  // and each Open opens a file again. Throws RecordFile's errors.
  // `totals`: the number of all records and bytes, if known. Then a file that cannot be opened or
  // read is damaged, and throws CorruptRecord. If `tolerant`, its records are lost, and only a set
  // without any readable file throws. If the files have fewer records than `totals`, the missing
  // records are lost as well. They are assigned to files whose count no sidecar confirms. So a pass
  // after the damage has as many records as a pass before it. If only one file has no
  // confirmed count, all records of the other files keep their positions in the set.
  FileSet(std::vector<Input> inputs, bool tolerant, uint64_t window,
          std::optional<Totals> totals = {});

  const std::vector<FileExtent>& extents() const { return extents_; }
  uint64_t num_bytes() const { return num_bytes_; }

  // True if all files are open.
  bool opened() const { return !opened_.empty() || inputs_.empty(); }

  // Throws RecordFile's errors. A file that was only counted may have fewer records now.
  std::shared_ptr<const RecordFile> Open(uint32_t file) const;

 private:
  struct Counted {
    FileExtent extent{};
    bool records_known = true;  // false: records may have been lost before the count
    bool bytes_known = true;
    std::string lost = {};  // why no record can be read; empty: some can
  };

  static Counted CountOpened(const RecordFile& file);
  Counted Count(size_t file) const;
  static void Complete(const Totals& totals, std::vector<Counted>* counted);
  std::shared_ptr<const RecordFile> OpenNew(size_t file) const;
  // Returns why a file that cannot be opened counts as lost. Throws if it does not.
  std::string Lost(size_t file, const IoError& error) const;

  std::vector<Input> inputs_;
  const bool tolerant_;
  const bool known_;                                       // `totals` was given
  std::vector<std::shared_ptr<const RecordFile>> opened_;  // all or none
  std::vector<FileExtent> extents_;
  uint64_t num_bytes_ = 0;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILESET_H_
