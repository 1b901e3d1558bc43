// The exceptions of the core. module_support.cc turns each into the Python class named here.

#ifndef CACHECD_CORE_ERRORS_H_
#define CACHECD_CORE_ERRORS_H_

#include <cerrno>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace cachecd {

// A system call failed. -> OSError (the subclass for `code`) with the path as filename.
class IoError : public std::exception {
 public:
  IoError(int code, std::string path) : code(code), path(std::move(path)) {}
  const char* what() const noexcept override { return path.c_str(); }

  // True if the file is missing, is no longer a regular file, or cannot be read. False if the
  // process lacks descriptors or memory.
  bool IsDamage() const {
    switch (code) {
      case ENOENT:
      case ENOTDIR:
      case EISDIR:
      case ELOOP:
      case EINVAL:
      case EACCES:
      case EPERM:
      case EIO:
      case ENXIO:
      case ESTALE:
        return true;
      default:
        return false;
    }
  }

  int code;  // errno
  std::string path;
};

// A frame of a TFRecord file differs from what was written. -> CorruptRecordError
class CorruptRecord : public std::exception {
 public:
  CorruptRecord(std::string path, uint64_t offset, std::string why)
      : path(std::move(path)), offset(offset), why(std::move(why)) {}
  const char* what() const noexcept override { return why.c_str(); }

  std::string path;
  uint64_t offset;  // start of the frame
  std::string why;
};

// A sidecar is truncated, altered, or has an unknown version. -> CorruptSidecarError
class CorruptSidecar : public std::exception {
 public:
  CorruptSidecar(std::string path, std::string why) : path(std::move(path)), why(std::move(why)) {}
  const char* what() const noexcept override { return why.c_str(); }

  std::string path;
  std::string why;
};

// A record, or a request for features, does not fit the schema. -> SchemaError
class SchemaMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A payload is not a serialized tf.train.Example. -> ValueError, or SchemaError while reading
// batches
class MalformedExample : public std::runtime_error {
 public:
  MalformedExample(uint64_t offset, const std::string& why)
      : std::runtime_error("not a tf.train.Example: " + why + " at byte " +
                           std::to_string(offset)) {}
  explicit MalformedExample(const std::string& why) : std::runtime_error(why) {}
};

// The object cannot be used: it is closed or finished, was made before a fork, or was changed by
// other code. -> RuntimeError
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_ERRORS_H_
