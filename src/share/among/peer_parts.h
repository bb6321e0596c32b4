// How far what peers say of members is believed, for AmongTags. A peer may lie: it can name any number of members, and
// what one of them takes of the level is taken from the others.
//
// What all members of a peer were served counts no further than the hits of the divided tag that the peer reported, which
// its bucket has paid, and once for what one host can serve in some seconds. What they were asked for counts up to twice
// that, and beyond it, for all of them together, for the peer's part of the rate. So much that honest members are cut by the
// level and not by this: one that gets its level is counted with twice as much.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/side_table.h"
#include "base/time.h"
#include "base/tokens.h"
#include "share/among/members.h"

namespace dthrottle {

// Guarded by the lock of the shard of the divided tag.
class AmongPeerParts {
 public:
  AmongPeerParts() : parts_(kMost) {}

  struct Bounds {
    double rate;        // tokens/s, the peer's part of the divided tag's
    Tokens hits_max;    // that the peer can have served lately
    Duration lately;
  };

  // The peer has reported hits of the divided tag.
  void AddHits(std::uint64_t divided, std::uint32_t peer, Tokens hits, const Bounds& bounds, Instant now) {
    Part* const part = FindOrAdd(divided, peer, bounds, now);
    if (part != nullptr) part->hits = std::min(part->hits + hits, bounds.hits_max);
  }
  // What counts of what it says of a member.
  MemberUse Believed(std::uint64_t divided, std::uint32_t peer, MemberUse said, const Bounds& bounds, Instant now) {
    Part* const part = FindOrAdd(divided, peer, bounds, now);
    if (part == nullptr) return {};
    const double served = std::min(said.served, part->hits);
    const double unserved = std::max(said.asked - kTimesServed * served, 0.0);
    // No member has all of it: a hog would leave nothing to those that ask for little.
    const double more = std::min({unserved, part->spare, std::max(1.0, part->spare / 8)});
    part->hits -= served, part->spare -= more;
    return {std::max(said.asked - unserved + more, served), served};
  }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 17, kWays = 8;
  static constexpr double kTimesServed = 2;

  struct Part {
    Tokens hits = 0;     // of the divided tag, that are no member's yet
    Tokens spare = 0;    // that members may be asked for beyond what they were served, as of `at`
    Instant at{};
  };

  // One that was not known has all that it can have: of a fleet that starts, hits of members may come before those of the
  // divided tag.
  Part* FindOrAdd(std::uint64_t divided, std::uint32_t peer, const Bounds& bounds, Instant now) {
    const std::uint64_t key = AmongMembers::KeyOf(divided, peer);
    const bool known = parts_.Find(key) != parts_.kNone;
    const std::size_t at = parts_.FindOrPut(key, [&](std::size_t place) { return std::optional(parts_[place].at); });
    if (at == parts_.kNone) return nullptr;
    Part& part = parts_[at];
    const Duration passed = known ? std::clamp<Duration>(now - part.at, Duration(0), bounds.lately) : bounds.lately;
    if (!known) part.hits = bounds.hits_max;
    part.spare = std::min(part.spare + bounds.rate * Seconds(passed), bounds.rate * Seconds(bounds.lately));
    part.at = now;
    return &part;
  }

  SideTable<Part, kWays> parts_;
};

}    // namespace dthrottle
