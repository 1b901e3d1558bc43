// What a reading thread does at the moment. A waiting trainer samples it (see BatchReader::Wait).

#ifndef CACHECD_CORE_STAGE_H_
#define CACHECD_CORE_STAGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cachecd {

enum class Stage : uint8_t {
  kOpen,      // opens files, finds the records of a batch
  kRead,      // brings pages of records into memory
  kVerify,    // parses records, copies values and computes their CRC, in one sweep
  kDecode,    // decodes pictures
  kAssemble,  // allocates and completes columns
};

constexpr std::array<const char*, 5> kStageNames = {"open", "read", "verify", "decode", "assemble"};

// Set by one thread, read by others. A stage has no effect on memory order.
class StageMark {
 public:
  void Set(Stage stage) { stage_.store(stage, std::memory_order_relaxed); }
  Stage Get() const { return stage_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Stage> stage_{Stage::kOpen};
};

}  // namespace cachecd

#endif  // CACHECD_CORE_STAGE_H_
