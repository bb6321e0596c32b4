// Turns: questions of a tag that wait for their tokens, one after the other on all hosts together.
//
// A turn is told to peers at once, because a peer that has not heard of it gives it too. Two hosts that are asked
// within the time that takes give one turn twice. Callers often come back at their turn, so these two would meet for
// good. A host that hears of a turn soon after it gave one itself makes the next waits of the tag longer by chance: by
// up to twice as much each time, until callers with such a turn are back. (Ethernet does so after a collision: Metcalfe
// and Boggs 1976.)
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"
#include "bucket/bucket.h"

namespace dthrottle {

class Turns {
 public:
  // A wait is up to so much longer by chance: always, and at most.
  static constexpr Duration kApart = std::chrono::microseconds(500);
  static constexpr Duration kApartMax = std::chrono::milliseconds(10);

  // ---- With the tag's shard locked, any thread ----

  // A turn of the tag is given, which comes after `wait`. True: it is the first that peers are to be told of.
  bool Give(std::uint64_t hash, const Tag& tag, Duration wait, Instant now) {
    const std::size_t at = turns_.FindOrPut(hash, [&](std::size_t place) {
      return turns_.untold(place) ? std::nullopt : std::optional(turns_[place].given);
    });
    if (at == turns_.kNone) return false;    // it waits for the report of the period
    Turn& its = turns_[at];
    if (its.apart == Duration::zero()) its.tag = KeptTag(tag);
    if (its.apart == Duration::zero() || now > its.meets_until) its.apart = kApart;
    its.met = false;
    its.given = now;
    its.turn = now + wait;
    return turns_.SetUntold(at);
  }

  // A peer has served hits of the tag.
  void Hear(std::uint64_t hash, const Shape& shape, Instant now) {
    const std::size_t at = turns_.Find(hash);
    if (at == turns_.kNone) return;
    Turn& its = turns_[at];
    const Duration most = std::clamp(ToDuration(shape.interval) / 2, kApart, kApartMax);
    if (its.met || now - its.given >= most) return;
    its.met = true;
    its.apart = std::min(2 * its.apart, most);
    its.meets_until = std::max(its.meets_until, its.turn + most);
  }

  // Up to how much longer the wait is that was given last.
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
    Instant given{}, turn{};    // when the last one was given, and comes
    bool met = false;           // a peer has given that one too
    Duration apart{};           // 0: the entry is new
    Instant meets_until{};      // callers with such a turn are back then
  };
  static constexpr std::size_t kTags = 7 * 64, kWays = 7;

  ToldTable<Turn, kWays> turns_{kTags};
};

}    // namespace dthrottle
