// What a bucket computes in: 1/16 ns, so that the interval between tokens of a fast rule keeps four more bits. 63 bits
// of ticks last 18 years after boot.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace dthrottle {

using Ticks = std::int64_t;
inline constexpr Ticks kTicksPerNanosecond = 16;

constexpr Ticks ToTicks(Duration d) {
  return d.count() * kTicksPerNanosecond;
}
constexpr Ticks ToTicks(Instant t) {
  return ToTicks(t.time_since_epoch());
}
// Rounded towards zero.
constexpr Duration ToDuration(Ticks t) {
  return Duration(t / kTicksPerNanosecond);
}

}    // namespace dthrottle
