#include "recordfile.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "crc32c.h"
#include "sidecar.h"
#include "tfrecord.h"

namespace cachecd {

RecordFile::RecordFile(const std::string& path, Offsets offsets, bool tolerant, std::string name)
    : data_(path), name_(name.empty() ? path : std::move(name)), end_(data_.size()) {
  if (offsets) {
    UseOffsets(std::move(offsets));
  } else {
    UseSidecar(tolerant);
  }
}

void RecordFile::UseOffsets(Offsets offsets) {
  for (size_t i = 0; i < offsets->size(); ++i) {
    const uint64_t offset = (*offsets)[i];
    if (offset >= end_ || (i != 0 && offset <= (*offsets)[i - 1])) {
      throw std::invalid_argument(name_ + ": offset " + std::to_string(offset) + " of record " +
                                  std::to_string(i) +
                                  " does not ascend or lies beyond the file's end");
    }
  }
  own_offsets_ = std::move(offsets);
  offsets_ = reinterpret_cast<const uint8_t*>(own_offsets_->data());
  num_records_ = own_offsets_->size();
}

void RecordFile::UseSidecar(bool tolerant) {
  const std::string path = SidecarPath(data_.path());
  try {
    sidecar_.emplace(path);
    if (sidecar_->Prefault(0, sidecar_->size()) != 0) {
      throw CorruptSidecar(path, std::strerror(EIO));
    }
    const SidecarView view(path, sidecar_->bytes());
    const ByteSpan offsets = view.Offsets();
    if (view.data_bytes() != data_.size()) {
      const std::string why = "it describes " + std::to_string(view.data_bytes()) + " bytes, " +
                              name_ + " has " + std::to_string(data_.size());
      if (!tolerant) throw CorruptSidecar(path, why);
      findings_.emplace_back(name_, std::min(view.data_bytes(), data_.size()), "sidecar: " + why);
    }
    offsets_ = offsets.data;
    num_records_ = view.records();
    end_ = view.data_bytes();
  } catch (const IoError& error) {
    if (error.code != ENOENT) throw;
    Walk(tolerant, false);
  } catch (const CorruptSidecar& error) {
    if (!tolerant) throw;
    findings_.emplace_back(name_, 0, "sidecar: " + error.why);
    Walk(tolerant, true);
  }
}

void RecordFile::Walk(bool tolerant, bool has_sidecar) {
  sidecar_.reset();
  auto offsets = std::make_shared<std::vector<uint64_t>>();
  try {
    ScanFile(data_.path(), false, offsets.get());
  } catch (const CorruptRecord& error) {
    if (!tolerant || (offsets->empty() && !has_sidecar)) {
      throw CorruptRecord(name_, error.offset, error.why);
    }
    findings_.emplace_back(name_, error.offset, error.why + "; what follows in the file is lost");
    end_ = error.offset;
  }
  UseOffsets(std::move(offsets));
}

uint64_t RecordFile::Frame::payload_bytes() const {
  return end - begin < kFrameOverhead || end < begin ? 0 : end - begin - kFrameOverhead;
}

RecordFile::Frame RecordFile::Locate(uint64_t index) const {
  if (index >= num_records_) return {end_, end_};
  const uint8_t* offset = offsets_ + 8 * index;
  return {LoadU64(offset), index + 1 < num_records_ ? LoadU64(offset + 8) : end_};
}

void RecordFile::Bring(const Frame& frame) const {
  if (frame.begin < frame.end && frame.end <= data_.size()) data_.Prefault(frame.begin, frame.end);
}

void RecordFile::Unreadable(const Frame& frame) const {
  throw CorruptRecord(name_, frame.begin, std::strerror(EIO));
}

ByteSpan RecordFile::Open(const Frame& frame) const {
  if (frame.begin == frame.end) {
    throw CorruptRecord(name_, frame.begin,
                        "lost: " + std::to_string(num_records_) + " records are left of the file");
  }
  if (frame.end > data_.size() || frame.begin > frame.end) {
    throw CorruptRecord(name_, frame.begin,
                        "cut short: the record ends at byte " + std::to_string(frame.end) +
                            ", the file at byte " + std::to_string(data_.size()));
  }
  ByteSpan payload;
  std::string why;
  if (!OpenFrame({data_.data() + frame.begin, frame.end - frame.begin}, &payload, &why)) {
    throw CorruptRecord(name_, frame.begin, why);
  }
  return payload;
}

ByteSpan RecordFile::Raw(const Frame& frame) const {
  if (frame.begin >= frame.end || frame.end > data_.size()) return {};
  return {data_.data() + frame.begin, frame.end - frame.begin};
}

void RecordFile::Verify(const Frame& frame, ByteSpan payload) const {
  VerifyCrc(frame, Crc32c(payload.data, payload.size));
}

void RecordFile::VerifyCrc(const Frame& frame, uint32_t crc) const {
  const std::string why = CompareCrc(data_.data() + frame.end - kFrameFooter, crc);
  if (!why.empty()) throw CorruptRecord(name_, frame.begin, why);
}

}  // namespace cachecd
