// Whether this process is a fork of the one that made an object.
//
// Threads do not survive a fork and mutexes may be held for ever by those that did not. Whatever
// has either notes the generation when it is made, and in another generation touches neither.

#ifndef CACHECD_CORE_FORK_H_
#define CACHECD_CORE_FORK_H_

#include <cstdint>

namespace cachecd {

// How many forks lie between this process and the one that loaded the module.
uint64_t ForkGeneration();

}  // namespace cachecd

#endif  // CACHECD_CORE_FORK_H_
