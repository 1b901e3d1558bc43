// Detects whether an object was made before this process was forked.
//
// Threads do not survive a fork, and a mutex that such a thread held stays locked. An object with
// threads or mutexes stores its generation. In another generation it uses neither.

#ifndef CACHECD_CORE_FORK_H_
#define CACHECD_CORE_FORK_H_

#include <cstdint>

namespace cachecd {

// Returns the number of forks between the process that loaded the module and this process.
uint64_t ForkGeneration();

}  // namespace cachecd

#endif  // CACHECD_CORE_FORK_H_
