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

RecordFile::RecordFile(const std::string& path, Offsets offsets, bool tolerant)
    : data_(path), name_(path), end_(data_.size()) {
  if (offsets) {
    UseOffsets(std::move(offsets));
  } else {
    UseSidecar(tolerant);
  }
}

RecordFile::RecordFile(Offsets offsets, std::string name, const std::string& why)
    : name_(std::move(name)), counted_(offsets != nullptr), lost_(why) {
  if (offsets) UseOffsets(std::move(offsets));
  findings_.emplace_back(name_, 0, lost_);
}

void RecordFile::UseOffsets(Offsets offsets) {
  // Offsets beyond the file's end are accepted: the file may be cut short, which Open detects.
  for (size_t i = 1; i < offsets->size(); ++i) {
    const uint64_t offset = (*offsets)[i];
    if (offset <= (*offsets)[i - 1]) {
      throw std::invalid_argument(name_ + ": offset " + std::to_string(offset) + " of record " +
                                  std::to_string(i) + " does not ascend");
    }
  }
  Own(std::move(offsets));
}

void RecordFile::Own(Offsets offsets) {
  own_offsets_ = std::move(offsets);
  offsets_ = own_offsets_->data();
  num_records_ = own_offsets_->size();
}

void RecordFile::UseSidecar(bool tolerant) {
  const std::string path = SidecarPath(data_.path());
  try {
    RecordOffsets sidecar = ReadSidecarOffsets(path);
    end_ = sidecar.data_bytes;
    if (end_ != data_.size()) {
      const std::string why = "it describes " + std::to_string(end_) + " bytes, " + name_ +
                              " has " + std::to_string(data_.size());
      if (!tolerant) throw CorruptSidecar(path, why);
      findings_.emplace_back(name_, std::min(end_, data_.size()), "sidecar: " + why);
    }
    Own(std::make_shared<const std::vector<uint64_t>>(std::move(sidecar.offsets)));
  } catch (const IoError& error) {
    if (error.code == ENOENT) {
      Walk(tolerant, false);
      return;
    }
    if (!error.IsDamage()) throw;
    DoWithout(CorruptSidecar(path, std::strerror(error.code)), tolerant);
  } catch (const CorruptSidecar& error) {
    DoWithout(error, tolerant);
  }
}

void RecordFile::DoWithout(const CorruptSidecar& sidecar, bool tolerant) {
  if (!tolerant) throw sidecar;
  findings_.emplace_back(name_, 0, "sidecar: " + sidecar.why);
  Walk(tolerant, true);
}

void RecordFile::Walk(bool tolerant, bool has_sidecar) {
  counted_ = false;
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
  return {offsets_[index], index + 1 < num_records_ ? offsets_[index + 1] : end_};
}

bool RecordFile::Holds(const Frame& frame) const {
  return frame.begin < frame.end && frame.end <= data_.size();
}

void RecordFile::Bring(const Frame& frame) const {
  if (Holds(frame)) data_.Prefault(frame.begin, frame.end);
}

void RecordFile::Unreadable(const Frame& frame) const {
  throw CorruptRecord(name_, frame.begin, std::strerror(EIO));
}

ByteSpan RecordFile::Open(const Frame& frame) const {
  if (lost()) throw CorruptRecord(name_, frame.begin, lost_);
  if (frame.begin == frame.end) {
    throw CorruptRecord(name_, frame.begin,
                        "lost: " + std::to_string(num_records_) + " records are left of the file");
  }
  if (!Holds(frame)) {
    const bool begins = frame.begin < data_.size();
    throw CorruptRecord(name_, frame.begin,
                        std::string("cut short: the record ") + (begins ? "ends" : "begins") +
                            " at byte " + std::to_string(begins ? frame.end : frame.begin) +
                            ", the file ends at byte " + std::to_string(data_.size()));
  }
  ByteSpan payload;
  std::string why;
  if (!OpenFrame({data_.data() + frame.begin, frame.end - frame.begin}, &payload, &why)) {
    throw CorruptRecord(name_, frame.begin, why);
  }
  return payload;
}

ByteSpan RecordFile::Raw(const Frame& frame) const {
  if (!Holds(frame)) return {};
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
