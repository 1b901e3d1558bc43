// Several TFRecord files: how many records each has, and the files themselves.

#ifndef CACHECD_CORE_FILESET_H_
#define CACHECD_CORE_FILESET_H_

#include <cstdint>
#include <memory>
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
    Offsets offsets;   // null: the sidecar's, or a walk if there is none
    std::string name;  // what errors call it, if not `path`
  };

  // Looks at all files, several at a time. They are opened, once and for all, if all their bytes
  // fit into `window` (0: always do). Otherwise only their records are counted, as sidecars say or
  // a walk finds, and Open opens them anew. RecordFile's errors, for `tolerant` too.
  FileSet(std::vector<Input> inputs, bool tolerant, uint64_t window);

  const std::vector<FileExtent>& extents() const { return extents_; }
  uint64_t num_bytes() const { return num_bytes_; }

  // Whether all files are open.
  bool opened() const { return !opened_.empty() || inputs_.empty(); }

  // RecordFile's errors. A file that was only counted may have fewer records now.
  std::shared_ptr<const RecordFile> Open(uint32_t file) const;

 private:
  FileExtent Count(const Input& input) const;
  std::shared_ptr<const RecordFile> OpenNew(size_t file) const;

  std::vector<Input> inputs_;
  const bool tolerant_;
  std::vector<std::shared_ptr<const RecordFile>> opened_;  // all or none
  std::vector<FileExtent> extents_;
  uint64_t num_bytes_ = 0;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FILESET_H_
