// Several TFRecord files: how many records each has, and the files themselves.

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
    Offsets offsets;  // null: the sidecar's, or a walk if there is none
  };

  struct Totals {
    uint64_t records;
    uint64_t bytes;
  };

  // Looks at all files, several at a time. They are opened, once and for all, if all their bytes
  // fit into `window` (0: always do). Otherwise only their records are counted, as sidecars say or
  // a walk finds, and Open opens them anew. RecordFile's errors, for `tolerant` too.
  //
  // `totals`: if it is known what all files have. Then a file that cannot be opened, or of which
  // nothing can be read, is damaged like any other: CorruptRecord, and if `tolerant` only if there
  // is no other file; its records are lost. What the files are short of in all is lost as well, of
  // files of which no sidecar says how many records they had. So whoever comes after the damage has
  // as many records, in the same places, as whoever came before it: exactly so if one file lost
  // them.
  FileSet(std::vector<Input> inputs, bool tolerant, uint64_t window,
          std::optional<Totals> totals = {});

  const std::vector<FileExtent>& extents() const { return extents_; }
  uint64_t num_bytes() const { return num_bytes_; }

  // Whether all files are open.
  bool opened() const { return !opened_.empty() || inputs_.empty(); }

  // RecordFile's errors. A file that was only counted may have fewer records now.
  std::shared_ptr<const RecordFile> Open(uint32_t file) const;

 private:
  struct Counted {
    FileExtent extent{};
    bool records_known = true;  // and not merely what is left
    bool bytes_known = true;
    std::string lost = {};  // why none of its records can be read
  };

  static Counted CountOpened(const RecordFile& file);
  Counted Count(size_t file) const;
  static void Complete(const Totals& totals, std::vector<Counted>* counted);
  std::shared_ptr<const RecordFile> OpenNew(size_t file) const;
  // Why a file that cannot be opened is lost, unless that is an error.
  std::string Lost(size_t file, const IoError& error) const;

  std::vector<Input> inputs_;
  const bool tolerant_;
  const bool known_;                                       // what there is in all
  std::vector<std::shared_ptr<const RecordFile>> opened_;  // all or none
  std::vector<FileExtent> extents_;
  uint64_t num_bytes_ = 0;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILESET_H_
