// What the system has spent on this process.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"

namespace dthrottle {

struct ProcessUse {
  Duration cpu{};                      // of all threads, user and system
  std::uint64_t resident_bytes = 0;    // 0 where /proc does not say
};

ProcessUse ReadProcessUse();

// What the machine is called, with whatever no host may be called left out (base/host_name.h).
std::string NameOfMachine();

}    // namespace dthrottle
