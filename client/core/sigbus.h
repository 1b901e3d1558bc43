// Handles SIGBUS for mapped files that the disk cannot read.
// Reading a page of a mapped file raises SIGBUS if the disk cannot read the page, or if the file
// was truncated. While a BusGuard watches the mapping, a page of zeros replaces such a page, for
// all threads, until the file is unmapped. The guard records the fault, so that the reader can
// check for it after reading. The handler passes every other SIGBUS to the previous handler.

#ifndef CACHECD_CORE_SIGBUS_H_
#define CACHECD_CORE_SIGBUS_H_

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace cachecd {

// Lets its thread watch mappings for its lifetime; at most one guard per thread. Do not use bytes
// of a mapping before you check Faulted() and Disturbed(). If other code has replaced our handler,
// such as faulthandler.enable(), the next guard puts our handler in front of it.
class BusGuard {
 public:
  BusGuard();
  BusGuard(const BusGuard&) = delete;
  BusGuard& operator=(const BusGuard&) = delete;
  ~BusGuard();

  // From now on, the thread watches only this mapping. The file is never changed.
  static void Watch(ByteSpan mapping);

  // True if a read by this thread has replaced a page since Watch.
  static bool Faulted();

  // True if a read by any thread, including this thread, may have replaced a page since Watch.
  static bool Disturbed();
};

}  // namespace cachecd

#endif  // CACHECD_CORE_SIGBUS_H_
