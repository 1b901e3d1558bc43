// Detects whether an object was made before this process was forked.
// Threads do not survive a fork, and a mutex that a lost thread held stays locked. So an object
// with threads or mutexes stores its generation, and does not use them in another generation.

#ifndef CACHECD_CORE_FORK_H_
#define CACHECD_CORE_FORK_H_

#include <cstdint>

namespace cachecd {

// Returns the number of forks between the process that loaded the module and this process.
uint64_t ForkGeneration();

}  // namespace cachecd

#endif  // CACHECD_CORE_FORK_H_
