// Time as the core knows it: instants of a monotonic clock that somebody else reads.
//
// The clock types below have no now(). That is the point: only src/io and the programs may ask what time it is,
// and they pass the answer in, so every decision can be repeated exactly from a seed and a list of instants.
#pragma once

#include <chrono>
#include <cstdint>

namespace dthrottle {

// Nanoseconds; may be negative.
using Duration = std::chrono::nanoseconds;

// What a clock type is but for now(); `Clock` is the type that derives from it.
template <class Clock>
struct ClockBase {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock, Duration>;
  static constexpr bool is_steady = true;
};

struct MonotonicClock : ClockBase<MonotonicClock> {};

// Nanoseconds since an origin that is the same for all processes of one boot (CLOCK_MONOTONIC in the daemon).
using Instant = MonotonicClock::time_point;

// The same, but it goes on while the machine is suspended (CLOCK_BOOTTIME in the daemon). Leases and masterships end on
// this clock, because others count on their end.
struct BootClock : ClockBase<BootClock> {};
using BootInstant = BootClock::time_point;

// The same instant on the other clock, for a host that has never been suspended.
constexpr BootInstant OnBootClock(Instant t) {
  return BootInstant(t.time_since_epoch());
}
constexpr Instant OffBootClock(BootInstant t) {
  return Instant(t.time_since_epoch());
}

constexpr Instant FromNanoseconds(Duration::rep ns) {
  return Instant(Duration(ns));
}
constexpr double Seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
// Rounded up.
constexpr std::int64_t WholeSeconds(Duration d) {
  return std::chrono::ceil<std::chrono::seconds>(d).count();
}
// REQUIRES: no more than 292 years, and a number.
constexpr Duration DurationOf(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}    // namespace dthrottle
