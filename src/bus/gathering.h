// How long a host lets frames of its peers gather before it reads them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "bus/exchange.h"

namespace dthrottle {

// Frames that come in fast are read some at a time. The wake is most of what a small frame costs, and caches that have
// grown cold are half of what a large one costs.
class Gathering {
 public:
  // Few frames are read as they come, as are those of few peers.
  static constexpr std::size_t kFromPeers = 64;
  static constexpr double kFromFrames = 250, kFromBytes = 1 << 20;    // a second
  // Everything that hosts say may wait for a pause of `kShort`. Only reports wait for a longer one, which is at most
  // one kPart-th of the period.
  static constexpr Duration kShort = std::chrono::milliseconds(5), kLong = std::chrono::milliseconds(50);
  static constexpr int kPart = 50;

  // Goes by what has been received since the last call.
  void Look(std::size_t peers, Duration period, const ExchangeCounts& counts, Instant now) {
    const double passed = Seconds(now - looked_);
    const auto bytes = static_cast<double>(counts.received_bytes - bytes_);
    const auto frames = static_cast<double>(counts.received - frames_);
    const bool large = bytes >= kFromBytes * passed;
    of_small_ = !large && peers >= kFromPeers && frames >= kFromFrames * passed;
    pause_ = large ? std::min(kLong, period / kPart) : of_small_ ? kShort : Duration(0);
    bytes_ = counts.received_bytes, frames_ = counts.received, looked_ = now;
  }

  // All frames that were there have been read.
  void Begin(Instant now) { until_ = now + pause_; }

  Instant until() const { return until_; }
  // Everything waits for it.
  bool of_all() const { return pause_ <= kShort; }
  // Small frames of many peers gather, for kShort.
  bool of_small() const { return of_small_; }

 private:
  Duration pause_{};
  bool of_small_ = false;
  Instant until_{}, looked_{};
  std::uint64_t bytes_ = 0, frames_ = 0;    // of ExchangeCounts, when it was looked
};

}    // namespace dthrottle
