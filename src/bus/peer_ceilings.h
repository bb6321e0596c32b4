// What one peer may say in a second, on average over ten. What it says above that is not taken: frames, entries and
// hits wait in the ring of the peer, which is asked for them again as the ceiling allows; entries that name new tags
// are dropped by the limiter. Other peers do not notice.
#pragma once

#include <cstdint>

#include "base/allowance.h"

namespace dthrottle {

struct PeerCeilings {
  static constexpr int kSeconds = 10;    // over which they are averaged

  // What a peer has left under one of them.
  static Allowance Room(std::uint64_t ceiling) {
    return {static_cast<double>(ceiling), static_cast<double>(ceiling) * kSeconds};
  }

  std::uint64_t frames = 1000;
  std::uint64_t entries = 200'000;
  std::uint64_t hits = 100'000'000;    // tokens
  std::uint64_t new_tags = 100'000;    // tags that have no bucket here yet
};

// How much of a peer's news was not taken when it came, by the ceiling that it was above.
struct CutCounts {
  std::uint64_t frames = 0;     // unread
  std::uint64_t entries = 0;    // of frames above the ceiling for entries
  std::uint64_t hits = 0;       // of frames above the ceiling for hits
  std::uint64_t limits = 0;     // frames of which a tenant has turned something down
};

}    // namespace dthrottle
