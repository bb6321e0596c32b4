#include "io/clock.h"

#include <ctime>

namespace dthrottle {

Instant Now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant(std::chrono::seconds(t.tv_sec) + Duration(t.tv_nsec));
}

}    // namespace dthrottle
