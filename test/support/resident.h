// How much memory this process has.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace dthrottle::testing {

inline std::size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}    // namespace dthrottle::testing
