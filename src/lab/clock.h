// Two kinds of time that must never be mixed: the world's, which no host knows, and what a host's clock shows.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace dthrottle::lab {

struct WorldClock : ClockBase<WorldClock> {};

// Since the story began; may be negative.
using WorldTime = WorldClock::time_point;

constexpr WorldTime After(Duration d) {
  return WorldTime(d);
}

// The latest date that a story begins with, in seconds since 1970 UTC: 2200. Centuries later Duration ends.
inline constexpr std::int64_t kDateMaxS = 7'258'118'400;

// The date that all hosts agree on, as they keep it by the same servers of time: since 1970 UTC.
struct WallClock {
  Duration begins{};    // when the story begins

  Duration Date(WorldTime t) const { return begins + t.time_since_epoch(); }
};

// One host's clock: it started at another moment than everybody's and runs a little too fast or too slow.
class HostClock {
 public:
  HostClock() = default;
  // `drift_ppb`: nanoseconds gained in a second.
  HostClock(Duration offset, std::int64_t drift_ppb) : offset_(offset), drift_ppb_(drift_ppb) {}

  Instant Local(WorldTime t) const { return Instant(offset_ + t.time_since_epoch() + Gained(t.time_since_epoch())); }

  // The first moment at which the clock shows `local` or more.
  WorldTime When(Instant local) const {
    const Duration shown = local.time_since_epoch() - offset_;
    Duration since = shown;
    for (int i = 0; i < 4; ++i) since = shown - Gained(since);    // each step is 100 times closer or more
    WorldTime t(since);
    while (Local(t) < local) t += Duration(1);
    while (Local(t - Duration(1)) >= local) t -= Duration(1);
    return t;
  }

 private:
  // In whole seconds and their rest, because the product would need more than 64 bits.
  Duration Gained(Duration since) const {
    constexpr std::int64_t kBillion = 1'000'000'000;
    const std::int64_t seconds = since.count() / kBillion, rest = since.count() % kBillion;
    return Duration(seconds * drift_ppb_ + rest * drift_ppb_ / kBillion);
  }

  Duration offset_{};
  std::int64_t drift_ppb_ = 0;
};

}    // namespace dthrottle::lab
