// Work that must not hold up queries: what 10^5 overrides take is milliseconds, wherever the time is spent.
#pragma once

#include <thread>

namespace dthrottle {

// Runs `work` to its end in a thread of its own. What it allocates is then in another heap than what this thread uses,
// so that freeing it later does not lock this thread out while the heap shrinks.
template <class Work>
void Elsewhere(Work&& work) {
  std::thread(work).join();
}

}    // namespace dthrottle
