// Turns: questions of a tag that wait for their tokens, one after the other on all hosts together.
//
// A turn is told to peers at once, because a peer that has not heard of it gives it too. Two hosts that are asked within
// the time that takes give one turn twice. Callers often come back at their turn, so these two would meet for good. A
// host that hears of a turn soon after it gave one itself lets the next callers of the tag go on later by chance: up to
// twice as much each time, until turns of others come at another time. (Ethernet does the same after a collision:
// Metcalfe and Boggs 1976, section 4.4.)
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/time.h"
#include "base/tag.h"
#include "base/told_table.h"
#include "bucket/bucket.h"

namespace dthrottle {

class Turns {
 public:
  // As much later a caller always goes on, by chance, where peers have the same queue.
  static constexpr Duration kApart = std::chrono::microseconds(500);
  static constexpr Duration kApartMax = std::chrono::milliseconds(50);

  // ---- With the tag's shard locked, any thread ----

  // A turn of the tag is given. True: it is the first that peers are to be told of.
  bool Give(std::uint64_t hash, const Tag& tag, Instant now) {
    const std::size_t at = turns_.FindOrPut(hash, [&](std::size_t place) {
      return turns_.untold(place) ? std::nullopt : std::optional(turns_[place].given);
    });
    if (at == turns_.kNone) return false;    // it waits for the report of the period
    if (turns_[at].apart == Duration::zero()) turns_[at] = {KeptTag(tag), now, kApart};
    turns_[at].given = now;
    return turns_.SetUntold(at);
  }

  // A peer has served hits of the tag.
  void Hear(std::uint64_t hash, const Shape& shape, Instant now) {
    const std::size_t at = turns_.Find(hash);
    if (at == turns_.kNone) return;
    const Duration most = std::clamp(ToDuration(shape.interval), kApart, kApartMax);
    Turn& its = turns_[at];
    its.apart = now - its.given < most * 3 / 4 ? std::min(2 * its.apart, most) : kApart;
  }

  // Up to how much later the next caller of the tag goes on.
  Duration Apart(std::uint64_t hash) const {
    const std::size_t at = turns_.Find(hash);
    return at != turns_.kNone ? turns_[at].apart : kApart;
  }

  // ---- The owner's thread ----

  bool any_untold() const { return turns_.any_untold(); }

  // Calls tell(tag, locked) for each tag of which turns are to be told, until it returns false: there is no room now.
  // True: there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Tell&& tell) {
    return turns_.TellSome(lock, [&](std::size_t at, auto& locked) { return tell(turns_[at].tag.tag(), locked); });
  }

 private:
  struct Turn {
    KeptTag tag;
    Instant given{};     // the last of them
    Duration apart{};    // 0: the entry is new
  };
  static constexpr std::size_t kTags = 7 * 64, kWays = 7;

  ToldTable<Turn, kWays> turns_{kTags};
};

}    // namespace dthrottle
