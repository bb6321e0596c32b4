// What an owner of tags tells the other hosts of penalties (protocol/owners.md): each that begins or is lifted, to
// everybody, at once and twice more, since frames may be lost; and all of them to a host that comes. For one thread, as
// Owning.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/allowance.h"
#include "bus/exchange.h"
#include "share/owners/near.h"
#include "share/ways.h"

namespace dthrottle {

class Ownership;

class PenaltyTelling {
 public:
  // All must outlive it.
  PenaltyTelling(Ways& ways, ToPeersRing& to_peers, NearCounts& counts)
      : ways_(ways), to_peers_(to_peers), counts_(counts) {}

  // A tag of this host is penalized for so many milliseconds, or no longer.
  void Began(const Tag& said, std::uint64_t left, Instant now);
  // A host has come, which is to know of penalties of tags that this host owns.
  void TellTo(std::uint32_t peer, const Ownership& ownership, Instant now);

  // When to call Tell, which hands over what is due; false: the other side has no room for it.
  Instant next() const { return std::min(due_at_, again_.empty() ? Instant::max() : again_at_); }
  bool Tell(Instant now);

 private:
  struct Again {
    KeptTag said;
    Instant until, at;
  };

  void Say(const Tag& said, Duration left, Instant now);

  Ways& ways_;
  ToPeersRing& to_peers_;
  NearCounts& counts_;
  Allowance room_ = NearRoom();
  std::deque<Again> again_;
  Instant again_at_{};                 // to look at them
  Entries said_;                       // as a frame of near has them
  Instant said_at_{}, told_at_{};      // the first of these; the latest frame
  Instant due_at_ = Instant::max();    // the next
};

}    // namespace dthrottle
