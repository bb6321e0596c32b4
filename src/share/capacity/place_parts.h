// Places in flight of tags whose limit hosts divide: a host's part of the limit bounds its places too.
//
// A place may be taken for as long as it likes, so the part behind it must not move. It is leased out of this host's
// part as lease servers do (Dividing::Lease): what is taken is pinned, and so is some room for what may come; only what
// the exchange has confirmed to be pinned is taken. So a tag that this host has not had lately begins with what its
// reserve has room for, and more follows within a round or two. What was wanted lately stays pinned: otherwise places
// that are given back and taken again within a second would be waited for each time.
//
// Hosts of which each has less than a place would never have one. So a host that waits for its first place asks for more
// the longer it waits, by a factor that is drawn anew each time: the others give it what they do not use. A host that got
// places keeps one for a turn, long enough to be of use, and then gives it to a host that waits once it is free.
//
// Where this host's lease ends, because nobody hears it, others inherit its part. Shortly before, what it has taken
// beyond its reserve is over, and is taken back from those who hold it. When hosts divide anew each keeps what it had
// for a while, and takes no other places (capacity/: CapacityStanding::kept_until).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "hold/in_flight.h"
#include "share/capacity/place_units.h"

namespace dthrottle {

class PlaceParts {
 public:
  static constexpr std::size_t kTags = 8 * 512;
  // So long before its lease ends this host makes do with its reserve.
  static constexpr Duration kAhead = std::chrono::seconds(1);

  // Places of a part of a limit with so many.
  static std::uint32_t Of(double part, std::uint32_t in_flight) {
    constexpr double kRounding = 1e-6;    // parts are rounded down
    return static_cast<std::uint32_t>(std::clamp(part, 0.0, 1.0) * in_flight + kRounding);
  }

  // ---- With the shard of the tag locked, any thread ----

  // What may be taken here; `reserve` at least.
  std::uint32_t Here(std::uint64_t hash, std::uint32_t reserve, BootInstant now) const {
    const std::size_t at = tags_.Find(hash);
    return at != Tags::kNone && now < tags_[at].until ? std::max(tags_[at].most, reserve) : reserve;
  }

  // A place was wanted and all were taken.
  void Wanted(const Tag& tag, std::uint64_t hash, BootInstant now) {
    std::size_t at = tags_.Find(hash);
    if (at == Tags::kNone) {
      at = tags_.RoomFor(hash, [](std::size_t) { return std::optional<int>(); });
      if (at == Tags::kNone) return;
      tags_.Put(at, hash);
      tags_[at] = {.tag = KeptTag(tag)};
    }
    ++tags_[at].wanted;
    tags_[at].wanted_at = tags_[at].refused_at = now;
  }

  // ---- For the owner's thread, which locks the shard of a hash by `lock(hash)` ----

  struct Use {
    std::uint64_t hash;
    KeptTag tag;
    std::uint32_t has;      // places that are taken, or may be until Lend
    std::uint32_t wants;    // places
  };

  bool any() const { return tags_.used() > 0; }

  // Says what each tag uses, and lets it take no more until Lend. Forgets tags that have had no place for a while.
  template <class Lock>
  std::vector<Use> Uses(Lock&& lock, const InFlight& in_flight, BootInstant now);

  // ---- For the owner's thread, with the shard locked ----

  struct Lent {
    std::uint32_t most = 0;    // places that this host should have
    std::uint32_t all = 0;     // that it has
    BootInstant until{};
  };
  // So many may be taken here until then: `most`, or one of them more while it is this host's turn.
  void Lend(std::uint64_t hash, const PlaceUnits& units, const Lent& lent, Duration interval, BootInstant now);
  // Hosts divide anew: what may be taken here may be so until `kept_until`, and after that as much of it as is lent.
  void Rest(std::uint64_t hash, const PlaceUnits& units, const Lent& lent, BootInstant kept_until, BootInstant now);
  // How many of the places that are taken need not be given back; `reserve` at least.
  std::uint32_t May(std::uint64_t hash, std::uint32_t reserve, BootInstant now) const {
    const std::size_t at = tags_.Find(hash);
    return at != Tags::kNone && now < tags_[at].until ? std::max(tags_[at].all, reserve) : reserve;
  }
  // Places that are asked for beyond what is wanted, because this host has had none for a while.
  double Urges(std::uint64_t hash, bool has_none, Duration interval, BootInstant now);

 private:
  // A tag is remembered for so long after it was wanted last.
  static constexpr Duration kRemembered = std::chrono::seconds(60);
  // The most that was wanted counts for so long, and for up to twice as long.
  static constexpr Duration kLately = std::chrono::seconds(5);
  // A host that has refused nobody for so long waits for no place.
  static constexpr Duration kAsksAgain = std::chrono::seconds(2);
  // In rounds of the exchange: the least time of a turn, which may be twice as long, and that in which what a host that
  // waits asks for at least doubles, so often at most. Then its factor is drawn anew every so often: neighbours of a
  // host that waits may be those of another one, each with some of a place.
  static constexpr int kTurn = 5, kDoubles = 4, kDoublings = 8, kDraws = 12;

  struct Part {
    KeptTag tag;
    std::uint32_t most = 0, all = 0;    // that may be taken; that are this host's, though neighbours wait for some
    BootInstant until{};
    std::uint32_t reserve = 0, rest = 0;    // PlaceUnits when it was lent
    std::uint32_t draws = 0;
    BootInstant turn_ends{}, refused_at{}, drawn_at{};
    BootInstant waits_since{};    // BootInstant(): it does not
    std::uint32_t wanted = 0;    // since Uses
    BootInstant wanted_at{};
    std::uint32_t peak = 0, peak_before = 0;    // the most wants since turned_at, and in the time before
    BootInstant turned_at{};

    // The factor of this host and this draw, 1 to 2.
    double Chance(std::uint64_t hash) const {
      const std::uint64_t mixed = (hash ^ draws) * 0x9e3779b97f4a7c15;
      return 1 + static_cast<double>(mixed >> 40) / static_cast<double>(1 << 24);
    }

    // The most that was wanted lately, `wants` now included.
    std::uint32_t Lately(std::uint32_t wants, BootInstant now) {
      if (now - turned_at >= kLately) {
        peak_before = now - turned_at < 2 * kLately ? peak : 0;
        peak = 0;
        turned_at = now;
      }
      peak = std::max(peak, wants);
      return std::max(peak, peak_before);
    }
  };
  using Tags = SideTable<Part, 8>;

  Tags tags_{kTags};
};

template <class Lock>
std::vector<PlaceParts::Use> PlaceParts::Uses(Lock&& lock, const InFlight& in_flight, BootInstant now) {
  std::vector<Use> uses;
  for (std::size_t place = 0; any() && place < tags_.places(); ++place) {
    const std::uint64_t hash = tags_.HashAt(place);
    if (hash == 0) continue;
    const auto locked = lock(hash);
    if (tags_.HashAt(place) != hash) continue;
    Part& part = tags_[place];
    const std::uint32_t taken = in_flight.taken(hash), wanted = std::exchange(part.wanted, 0);
    if (taken == 0 && wanted == 0 && now - part.wanted_at >= kRemembered) {
      tags_.Remove(place);
      continue;
    }
    if (taken > 0) part.wanted_at = now;
    const std::uint32_t room = 1 + taken / 4;
    const std::uint32_t wants = part.Lately(taken + std::max(wanted, room), now);
    part.most = std::min(part.most, std::max(taken, wants));
    uses.push_back({hash, part.tag, std::max(taken, part.most), wants});
  }
  return uses;
}

inline void PlaceParts::Lend(std::uint64_t hash, const PlaceUnits& units, const Lent& lent, Duration interval,
                             BootInstant now) {
  const std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone) return;
  Part& part = tags_[at];
  const bool had = now < part.until && part.most > part.reserve;
  if (!had && lent.all > units.reserve()) {
    ++part.draws;
    part.turn_ends = now + Duration(static_cast<Duration::rep>(
                               static_cast<double>(kTurn * interval.count()) * part.Chance(hash)));
  }
  part.reserve = units.reserve();
  part.rest = units.rest();
  part.all = lent.all;
  part.most = now < part.turn_ends ? std::max(lent.most, std::min(lent.all, units.reserve() + 1)) : lent.most;
  part.until = lent.until;
}

inline void PlaceParts::Rest(std::uint64_t hash, const PlaceUnits& units, const Lent& lent, BootInstant kept_until,
                             BootInstant now) {
  const std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone || now >= tags_[at].until) return;
  Part& part = tags_[at];
  std::uint64_t beyond = part.all - std::min(part.all, part.reserve);
  if (units.rest() < part.rest) beyond = beyond * units.rest() / part.rest;
  part.all = units.reserve() + static_cast<std::uint32_t>(beyond);
  part.reserve = units.reserve();
  part.rest = units.rest();
  if (now + kAhead < kept_until) {
    part.until = std::max(part.until, kept_until);
  } else if (lent.until != BootInstant::min()) {    // or another generation is being agreed upon
    part.all = std::min(part.all, lent.all);
    part.until = lent.until;
  }
  part.most = part.all;
}

inline double PlaceParts::Urges(std::uint64_t hash, bool has_none, Duration interval, BootInstant now) {
  const std::size_t at = tags_.Find(hash);
  if (at == Tags::kNone) return 0;
  Part& part = tags_[at];
  if (!has_none || now - part.refused_at >= kAsksAgain) {
    part.waits_since = BootInstant();
    return 0;
  }
  if (part.waits_since == BootInstant()) part.waits_since = part.drawn_at = now;
  if (now - part.drawn_at >= kDraws * interval) {
    ++part.draws;
    part.drawn_at = now;
  }
  const double doubles = Seconds(now - part.waits_since) / Seconds(kDoubles * interval);
  return std::exp2(std::min<double>(doubles, kDoublings) * part.Chance(hash)) - 1;
}

}    // namespace dthrottle
