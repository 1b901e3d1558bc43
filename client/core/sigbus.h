// Mapped files that the disk does not give back.
//
// Touching a page of a mapped file that cannot be read, or that was cut off the file meanwhile, is
// a SIGBUS. While a BusGuard watches the range, the page is instead replaced by one of zeros, for
// all threads and for as long as the mapping lasts, and the guard notes it, so that whoever reads
// finds out afterwards. (systemd's journal does the same.) The handler leaves every other SIGBUS to
// whoever else handles it.

#ifndef CACHECD_CORE_SIGBUS_H_
#define CACHECD_CORE_SIGBUS_H_

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace cachecd {

// Lets its thread watch mappings while it lives; one of them a thread. What was touched must not be
// believed before Faulted() and Disturbed() were asked. If somebody has put a handler in the place
// of ours, such as faulthandler.enable(), the next guard puts ours in front of it.
class BusGuard {
 public:
  BusGuard();
  BusGuard(const BusGuard&) = delete;
  BusGuard& operator=(const BusGuard&) = delete;
  ~BusGuard();

  // The thread watches this mapping from now on, and none else. The file itself stays as it is.
  static void Watch(ByteSpan mapping);

  // Whether the thread had a page replaced since Watch.
  static bool Faulted();

  // Whether any thread, this one included, may have had any page replaced since Watch.
  static bool Disturbed();
};

}  // namespace cachecd

#endif  // CACHECD_CORE_SIGBUS_H_
