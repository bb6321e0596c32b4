#include "lab/one_for_all.h"

#include <algorithm>

namespace dthrottle::lab {
namespace {

// What the fleet's hosts have with each other it has not.
HostOptions Alone(const HostOptions& options) {
  HostOptions alone;
  alone.hosts = 1;
  alone.rules = options.rules;
  alone.period = options.period;
  alone.table_bytes = options.table_bytes;
  alone.quota_bytes = options.quota_bytes;
  alone.watched_tags = options.watched_tags;
  alone.counts_frequent_tags = false;
  return alone;
}

}    // namespace

OneForAll::OneForAll(const HostOptions& options, const WallClock& wall, Prng prng, WorldTime now)
    : wall_(wall), now_(now), wakes_(now), host_(0, Alone(options), HostClock(), *this, prng) {
  host_.Start(false, now);
}

SimHost& OneForAll::At(WorldTime now) {
  if (host_.TakeWoken()) wakes_ = std::min(wakes_, now_);
  while (wakes_ <= now) {
    now_ = wakes_;
    wakes_ = host_.Work(now_);
  }
  now_ = now;
  return host_;
}

}    // namespace dthrottle::lab
