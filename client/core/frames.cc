#include "frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.h"

namespace cachecd {

FrameScanner::FrameScanner(std::string name, uint64_t at_most)
    : name_(std::move(name)), at_most_(at_most) {}

// The header of the current frame is complete.
void FrameScanner::Begin() {
  uint64_t length = 0;
  const std::string why = CheckHeader(header_, &length);
  if (!why.empty()) throw CorruptRecord(name_, start_, why);
  const uint64_t left = at_most_ > start_ ? at_most_ - start_ : 0;
  if (left < kFrameOverhead || length > left - kFrameOverhead) {
    throw CorruptRecord(name_, start_,
                        "length " + std::to_string(length) + " cannot be: the stream has at most " +
                            std::to_string(left) + " more bytes");
  }
  rest_ = length + kFrameFooter;
}

void FrameScanner::Feed(ByteSpan piece) {
  const uint8_t* at = piece.data;
  while (at != piece.end()) {
    const auto left = static_cast<size_t>(piece.end() - at);
    size_t taken;
    if (header_size_ < kFrameHeader) {
      taken = std::min(left, kFrameHeader - header_size_);
      std::memcpy(header_ + header_size_, at, taken);
      header_size_ += taken;
      if (header_size_ == kFrameHeader) Begin();
    } else {
      taken = static_cast<size_t>(std::min<uint64_t>(left, rest_));
      rest_ -= taken;
    }
    at += taken;
    seen_ += taken;
    if (header_size_ == kFrameHeader && rest_ == 0) {
      offsets_.push_back(start_);
      start_ = seen_;
      header_size_ = 0;
    }
  }
}

const std::vector<uint64_t>& FrameScanner::Finish() const {
  if (seen_ != start_) {
    const uint64_t has = seen_ - start_;
    const uint64_t needs = header_size_ < kFrameHeader ? kFrameOverhead : has + rest_;
    throw CorruptRecord(name_, start_,
                        "cut short: the frame needs " + std::to_string(needs) +
                            " bytes, the stream has " + std::to_string(has) + " more");
  }
  return offsets_;
}

}  // namespace cachecd
