// The leaky bucket as anybody would first write it down: it keeps every hit and, to know a level, replays them all from
// the beginning. Slow and obvious, and exact: amounts are whole numbers of ticks (tokens times interval), in 128 bits.
#pragma once

#include <algorithm>
#include <vector>

#include "bucket/bucket.h"

namespace dthrottle::testing {

class ReferenceBucket {
 public:
  explicit ReferenceBucket(const Shape& shape) : shape_(shape) {}

  bool Take(Cost cost, Instant now) {
    if (LevelTicks(now) < Wide{cost} * shape_.interval) return false;
    Debit(cost, now);
    return true;
  }

  // Subtracts hits that happened at `when`, whatever has happened since.
  void Debit(Cost hits, Instant when) {
    const Hit hit{Ticks(when), Wide{hits} * shape_.interval};
    hits_.insert(std::upper_bound(hits_.begin(), hits_.end(), hit, [](auto& a, auto& b) { return a.at < b.at; }), hit);
  }

  Tokens Level(Instant now) const {
    return static_cast<double>(LevelTicks(now)) / static_cast<double>(shape_.interval);
  }

 private:
  __extension__ using Wide = __int128;

  struct Hit {
    Wide at, ticks;
  };

  static Wide Ticks(Instant t) { return Wide{t.time_since_epoch().count()} * kTicksPerNanosecond; }

  Wide LevelTicks(Instant now) const {
    Wide level = shape_.depth, at = hits_.empty() ? Ticks(now) : hits_.front().at;
    const auto refill = [&](Wide until) {
      level = std::min<Wide>(level + (until - at), shape_.depth);
      at = until;
    };
    for (const Hit& hit : hits_) {
      refill(hit.at);
      level -= hit.ticks;
    }
    refill(Ticks(now));
    return level;
  }

  Shape shape_;
  std::vector<Hit> hits_;
};

}    // namespace dthrottle::testing
