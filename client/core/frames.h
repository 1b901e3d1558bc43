// The frames of a TFRecord stream that comes piece by piece.

#ifndef CACHECD_CORE_FRAMES_H_
#define CACHECD_CORE_FRAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "tfrecord.h"

namespace cachecd {

// Finds where the frames start, in memory for their offsets alone, however long they are. Checks
// the CRC of each length; those of payloads are left to whoever reads them.
class FrameScanner {
 public:
  // `name` is what errors call the stream. A length is only believed if the stream can hold it:
  // `at_most` bytes in all.
  FrameScanner(std::string name, uint64_t at_most);

  // Takes the next piece of any size. CorruptRecord for the first frame that is wrong.
  void Feed(ByteSpan piece);

  // Where the first frame starts that is not whole yet.
  uint64_t offset() const { return start_; }

  // The offsets of all frames, once the stream has ended; CorruptRecord if it ended within one.
  const std::vector<uint64_t>& Finish() const;

 private:
  void Begin();

  std::string name_;
  uint64_t at_most_;
  uint64_t start_ = 0;      // of the current frame
  uint64_t seen_ = 0;       // bytes fed
  uint64_t rest_ = 0;       // of the current frame, beyond its header, still to come
  size_t header_size_ = 0;  // bytes in header_
  uint8_t header_[kFrameHeader];
  std::vector<uint64_t> offsets_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_FRAMES_H_
