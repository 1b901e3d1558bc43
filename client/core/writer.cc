#include "writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "errors.h"
#include "fork.h"
#include "tfrecord.h"

namespace cachecd {
namespace {

// All writes but the last are pieces of this size at multiples of it. If the file system can (ext4
// from 6.16 on, XFS), Linux keeps a piece in one huge page and maps it as one. At 4 kB per record,
// reading then spends 13 % less time on page tables.
constexpr size_t kBuffer = 2 << 20;
// After this many bytes, the kernel starts to write them to disk, while more bytes are fetched.
constexpr uint64_t kStartSync = 8 << 20;

uint64_t WholeBlocks(uint64_t bytes) {
  return (bytes + ShardWriter::kBlock - 1) / ShardWriter::kBlock * ShardWriter::kBlock;
}

void AddMisfit(std::vector<ShardWriter::Passed>* misfits, uint32_t ordinal, Misfit misfit) {
  size_t alike = 0;
  ShardWriter::Passed* last = misfits->empty() ? nullptr : &misfits->back();
  for (ShardWriter::Passed& each : *misfits) {
    if (each.misfit.name != misfit.name || each.misfit.kind != misfit.kind) continue;
    ++alike;
    last = &each;
  }
  if (alike < ShardWriter::kMostAlike && misfits->size() < ShardWriter::kMostMisfits) {
    misfits->push_back({ordinal, std::move(misfit), 0});
  } else {
    last->more += 1;
  }
}

}  // namespace

template <typename Step>
auto ShardWriter::AbortOnFailure(Step step) {
  try {
    return step();
  } catch (const IoError&) {
    Abort();
    throw;
  }
}

ShardWriter::ShardWriter(const std::string& path, uint64_t capacity, uint64_t meta_bytes)
    : generation_(ForkGeneration()), path_(path), capacity_(capacity), meta_bytes_(meta_bytes) {
  if (capacity != 0 && !Fits(0, meta_bytes_)) {
    throw std::invalid_argument("capacity of " + std::to_string(capacity) +
                                " bytes: an empty shard's sidecar alone can take " +
                                std::to_string(WholeBlocks(SidecarBytes(0, 0, meta_bytes_))));
  }
  const std::string sidecar = SidecarPath(path);
  // Checked now, and not only when the shard is full.
  if (access(sidecar.c_str(), F_OK) == 0) throw IoError(EEXIST, sidecar);
  buffer_.reserve(kBuffer);
  file_.emplace(File::Create(path));
  AbortOnFailure([&] { file_->Reserve(capacity / kBlock * kBlock); });
}

ShardWriter::~ShardWriter() { Abort(); }

void ShardWriter::RequireOpen() const {
  if (!file_) throw UsageError(path_ + ": the shard is finished or aborted");
  // Other code in this process may have written to the descriptor, or closed it.
  if (file_->Position() != written_) {
    throw UsageError(path_ +
                     ": the shard's descriptor was written to or closed by other code (does a "
                     "transform use descriptors that it did not open?)");
  }
}

bool ShardWriter::Fits(uint64_t frame_bytes, uint64_t meta_bytes, uint64_t unit_bytes) const {
  if (capacity_ == 0) return true;
  // Prevents overflow in the sums below.
  if (frame_bytes > capacity_ || meta_bytes > capacity_ || unit_bytes > capacity_) return false;
  const uint64_t records = num_records() + (frame_bytes != 0);
  const uint64_t sidecar = SidecarBytes(records, units_bytes_ + unit_bytes, meta_bytes);
  return WholeBlocks(num_bytes() + frame_bytes) + WholeBlocks(sidecar) <= capacity_;
}

void ShardWriter::Describe(SidecarUnit unit) {
  if (indices_.count(unit.number) == 0) described_[unit.number] = std::move(unit);
}

uint64_t ShardWriter::UnitBytes(uint64_t unit) const {
  if (last_ && last_->first == unit) return 0;
  if (indices_.count(unit) != 0) return 0;
  const auto found = described_.find(unit);
  return found == described_.end() ? kSidecarPerUnit : found->second.bytes();
}

void ShardWriter::Note(uint64_t frame_bytes, uint64_t unit, uint32_t ordinal) {
  if (!last_ || last_->first != unit) {
    const auto next = static_cast<uint32_t>(contents_.units.size());
    const auto [index, is_new] = indices_.try_emplace(unit, next);
    last_ = *index;
    if (is_new) {
      const auto found = described_.find(unit);
      contents_.units.push_back(found == described_.end() ? SidecarUnit{unit, 0, "", ""}
                                                          : std::move(found->second));
      units_bytes_ += contents_.units.back().bytes();
      if (found != described_.end()) described_.erase(found);
    }
  }
  contents_.offsets.push_back(contents_.data_bytes);
  contents_.indices.push_back(last_->second);
  contents_.ordinals.push_back(ordinal);
  contents_.data_bytes += frame_bytes;
}

void ShardWriter::Flush() {
  if (!buffer_.empty()) file_->Write({buffer_.data(), buffer_.size()});
  Wrote(buffer_.size());
  buffer_.clear();
}

void ShardWriter::Wrote(uint64_t bytes) {
  written_ += bytes;
  if (written_ - started_ < kStartSync) return;
  file_->StartSync(started_, written_ - started_);
  started_ = written_;
}

void ShardWriter::Put(ByteSpan bytes) {
  while (bytes.size != 0) {
    size_t step = bytes.size / kBuffer * kBuffer;
    if (buffer_.empty() && step != 0) {  // whole buffers, without a copy
      file_->Write({bytes.data, step});
      Wrote(step);
    } else {
      step = std::min(bytes.size, kBuffer - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + step);
      if (buffer_.size() == kBuffer) Flush();
    }
    bytes = {bytes.data + step, bytes.size - step};
  }
}

bool ShardWriter::Append(ByteSpan record, uint64_t unit, uint32_t ordinal) {
  RequireOpen();
  const uint64_t frame_bytes = record.size + kFrameOverhead;
  if (!Fits(frame_bytes, meta_bytes_, UnitBytes(unit))) return false;
  uint8_t header[kFrameHeader];
  uint8_t footer[kFrameFooter];
  EncodeHeader(record.size, header);
  EncodeFooter(record, footer);
  AbortOnFailure([&] {
    Put({header, sizeof header});
    Put(record);
    Put({footer, sizeof footer});
  });
  Note(frame_bytes, unit, ordinal);
  return true;
}

ShardWriter::Carried ShardWriter::AppendFrames(ByteSpan frames, uint64_t unit, uint32_t ordinal,
                                               const std::string& name, uint64_t base,
                                               RecordCheck* check) {
  RequireOpen();
  Carried carried;
  uint64_t run = 0;  // where the frames begin that are noted, but not put yet
  const auto put = [&] {
    AbortOnFailure([&] { Put({frames.data + run, carried.consumed - run}); });
  };
  while (frames.size - carried.consumed >= kFrameHeader) {
    const uint8_t* frame = frames.data + carried.consumed;
    const uint64_t left = frames.size - carried.consumed;
    uint64_t length = 0;
    std::string why = CheckHeader(frame, &length);
    if (why.empty() && (left < kFrameOverhead || length > left - kFrameOverhead)) break;
    const ByteSpan payload{frame + kFrameHeader, length};
    if (why.empty()) why = CheckPayload(payload, payload.end());
    if (!why.empty()) {
      if (carried.consumed == 0) throw CorruptRecord(name, base, why);
      break;
    }
    const auto number = ordinal + static_cast<uint32_t>(carried.records + carried.passed);
    if (auto misfit = check == nullptr ? std::nullopt : (*check)(payload)) {
      put();
      carried.passed += 1;
      carried.consumed += length + kFrameOverhead;
      run = carried.consumed;
      AddMisfit(&carried.misfits, number, *std::move(misfit));
      continue;
    }
    if (!Fits(length + kFrameOverhead, meta_bytes_, UnitBytes(unit))) {
      carried.full = true;
      break;
    }
    Note(length + kFrameOverhead, unit, number);
    carried.records += 1;
    carried.consumed += length + kFrameOverhead;
  }
  put();
  return carried;
}

ShardWriter::Sealed ShardWriter::Finish(const std::string& meta) {
  RequireOpen();
  if (meta.size() > meta_bytes_ && !Fits(0, meta.size())) {
    throw std::invalid_argument("meta of " + std::to_string(meta.size()) +
                                " bytes: " + std::to_string(meta_bytes_) +
                                " are kept for it, and the records left no room for the rest");
  }
  return AbortOnFailure([&] {
    Flush();
    // Truncates first, so that the sidecar can use the freed blocks.
    if (capacity_ != 0) file_->Truncate(num_bytes());
    file_->Sync();
    contents_.meta = meta;
    const uint64_t sidecar_bytes = WriteSidecar(SidecarPath(path_), contents_);
    try {
      file_->Close();
    } catch (const IoError&) {
      unlink(SidecarPath(path_).c_str());
      throw;
    }
    file_.reset();
    return Sealed{num_bytes(), sidecar_bytes, SidecarDigest(contents_)};
  });
}

void ShardWriter::Abort() {
  if (!file_) return;
  file_.reset();
  if (generation_ == ForkGeneration()) unlink(path_.c_str());
}

}  // namespace cachecd
