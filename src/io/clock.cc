#include "io/clock.h"

#include <ctime>

namespace dthrottle {

static Duration Read(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::chrono::seconds(t.tv_sec) + Duration(t.tv_nsec);
}

Instant Now() {
  return Instant(Read(CLOCK_MONOTONIC));
}

BootInstant BootNow() {
  return BootInstant(Read(CLOCK_BOOTTIME));
}

Duration WallClock() {
  return Read(CLOCK_REALTIME);
}

}    // namespace dthrottle
