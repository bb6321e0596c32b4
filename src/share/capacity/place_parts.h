// Places in flight of tags whose limit hosts divide: a host's part of the limit bounds its places too.
//
// A place may be taken for as long as it likes, so the part behind it must not move. It is leased out of this host's
// part as lease servers do (Dividing::Lease): what is taken is pinned, and so is some room for what may come; only what
// the exchange has confirmed to be pinned is taken. So a tag that this host has not had lately begins with what its
// reserve has room for, and more follows within a round or two. What was wanted lately stays pinned: otherwise places
// that are given back and taken again within a second would be waited for each time.
//
// Where this host's lease ends, because nobody hears it, others inherit its part. Shortly before, what it has taken
// beyond its reserve is over, and is taken back from those who hold it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "hold/in_flight.h"
#include "share/capacity/lease_part.h"

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
  std::uint32_t Here(std::uint64_t hash, std::uint32_t reserve, Instant now) const {
    const std::size_t at = tags_.Find(hash);
    return at != Tags::kNone && now < tags_[at].until ? std::max(tags_[at].most, reserve) : reserve;
  }

  // A place was wanted and all were taken.
  void Wanted(const Tag& tag, std::uint64_t hash, Instant now) {
    std::size_t at = tags_.Find(hash);
    if (at == Tags::kNone) {
      at = tags_.RoomFor(hash, [](std::size_t) { return std::optional<int>(); });
      if (at == Tags::kNone) return;
      tags_.Put(at, hash);
      tags_[at] = {.tag = KeptTag(tag)};
    }
    ++tags_[at].wanted;
    tags_[at].wanted_at = now;
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
  std::vector<Use> Uses(Lock&& lock, const InFlight& in_flight, Instant now);

  // So many may be taken here until then. With the shard locked.
  void Lend(std::uint64_t hash, std::uint32_t most, Instant until) {
    const std::size_t at = tags_.Find(hash);
    if (at == Tags::kNone) return;
    tags_[at].most = most;
    tags_[at].until = until;
  }

 private:
  // A tag is remembered for so long after it was wanted last.
  static constexpr Duration kRemembered = std::chrono::seconds(60);
  // The most that was wanted counts for so long, and for up to twice as long.
  static constexpr Duration kLately = std::chrono::seconds(5);

  struct Part {
    KeptTag tag;
    std::uint32_t most = 0;
    Instant until{};
    std::uint32_t wanted = 0;    // since Uses
    Instant wanted_at{};
    std::uint32_t peak = 0, peak_before = 0;    // the most wants since turned_at, and in the time before
    Instant turned_at{};

    // The most that was wanted lately, `wants` now included.
    std::uint32_t Lately(std::uint32_t wants, Instant now) {
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
std::vector<PlaceParts::Use> PlaceParts::Uses(Lock&& lock, const InFlight& in_flight, Instant now) {
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

}    // namespace dthrottle
