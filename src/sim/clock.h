// Two kinds of time that must never be mixed: the world's, which no host knows, and what a host's clock shows.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace dthrottle::sim {

struct World {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<World, Duration>;
  static constexpr bool is_steady = true;
};

// Since the story began; may be negative.
using WorldTime = World::time_point;

constexpr WorldTime After(Duration d) {
  return WorldTime(d);
}

// One host's clock: it started at another moment than everybody's and runs a little too fast or too slow.
class HostClock {
 public:
  HostClock() = default;
  // `drift_ppb`: nanoseconds gained in a second.
  HostClock(Duration offset, std::int64_t drift_ppb) : offset_(offset), drift_ppb_(drift_ppb) {}

  Instant Local(WorldTime t) const {
    const Wide since = t.time_since_epoch().count(), drifted = since * drift_ppb_;
    // Rounded toward the past on both sides of zero, so that the clock never stands still around it.
    const Wide gained = drifted >= 0 ? drifted / kBillion : -((-drifted + kBillion - 1) / kBillion);
    return Instant(offset_ + Duration(static_cast<Duration::rep>(since + gained)));
  }

  // The first moment at which the clock shows `local` or more.
  WorldTime When(Instant local) const {
    const Wide shown = (local.time_since_epoch() - offset_).count();
    WorldTime t(Duration(static_cast<Duration::rep>(shown * kBillion / (kBillion + drift_ppb_))));
    while (Local(t) < local) t += Duration(1);
    while (Local(t - Duration(1)) >= local) t -= Duration(1);
    return t;
  }

 private:
  __extension__ using Wide = __int128;
  static constexpr Wide kBillion = 1'000'000'000;

  Duration offset_{};
  std::int64_t drift_ppb_ = 0;
};

}    // namespace dthrottle::sim
