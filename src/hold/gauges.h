// Places that are taken over all hosts that share a limit by reports: each host says how many of a tag are taken there.
//
// That is a gauge and no sum. It is told when it changes and repeated in every period until it is zero; the last word
// counts, for as long as it says (`until`), also where an earlier one comes behind it because its report was repeated. So a
// report that is lost mends itself, and a host that dies gives its places back when its last word has run out, and not
// before.
//
// Both tables are bounded. A tag that is taken here makes room among those that only peers have taken; where all tags
// of a set are taken here, another one has no place. Peers share the places that are left: a tag of the one that has
// most of a set makes room for the others', and so does a word of the one that has most of a set of words.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/report_place.h"
#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"

namespace dthrottle {

class Gauges {
 public:
  static constexpr std::size_t kTags = 7 * 2048;                    // that are taken somewhere
  static constexpr std::size_t kHeard = std::size_t{1} << 15;       // by tag and peer

  // Calls `wake`, from any thread, when peers are to be told something, once until TellSome. With the table locked.
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

  // ---- With the shard of the tag locked, any thread ----

  // Places that other hosts have taken.
  std::uint32_t Elsewhere(std::uint64_t hash, Instant now);

  // Whether peers can be told of the tag.
  bool HasRoom(std::uint64_t hash) const;

  // The number of places of the tag that are taken here has changed, or is to be told again.
  void Changed(const Tag& tag, std::uint64_t hash);
  // The same for a tag that may be unknown.
  void Changed(std::uint64_t hash);

  bool Knows(std::uint64_t hash) const { return tags_.Find(hash) != Tags::kNone; }
  // Whether some are taken here, or peers have been told so.
  bool IsHere(std::uint64_t hash) const {
    const std::size_t at = tags_.Find(hash);
    return at != Tags::kNone && tags_[at].here;
  }

  // Places of a tag that a peer has taken, until then, unless it says something else before.
  struct Word {
    std::uint32_t places = 0;
    Instant until{};
    ReportPlace in{};    // the report that says so
  };
  // The peer of that number says so. False: there is no room.
  bool Hear(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Word& word, Instant now);
  // Numbers of others that speak of several hosts: the tag's owner, of all but this one (protocol/owners.md), and up to
  // 15 other sites, each of its own (protocol/sites.md); the number after theirs is of what is assumed of them.
  static constexpr std::uint32_t kOwner = UINT32_MAX, kSitesMax = 16;
  static constexpr std::uint32_t Site(std::uint32_t number) { return kOwner - kSitesMax + number; }

  // ---- The same, where this host owns the tag ----

  std::optional<Tag> TagOf(std::uint64_t hash) const;
  std::uint32_t OfPeer(std::uint64_t hash, std::uint32_t peer, Instant now) const;
  std::uint32_t OfSites(std::uint64_t hash, Instant now) const;
  // How many places are taken by all, as everybody has been told.
  std::uint32_t announced(std::uint64_t hash) const;
  // Everybody is to be told of another number; false: or was to be already. REQUIRES: the tag is known.
  bool Announce(std::uint64_t hash) { return !std::exchange(tags_[tags_.Find(hash)].to_announce, true); }
  void Announced(std::uint64_t hash, std::uint32_t places);

  // ---- For the owner's thread, which locks the shard of a hash by `lock(hash)` ----

  bool any_untold() const { return tags_.any_untold(); }

  // Calls tell(tag, hash, locked) for each tag that has changed, until it returns none: there is no room now. It returns
  // what is taken here. True: there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Tell&& tell) {
    return tags_.TellSome(lock, [&](std::size_t place, auto& locked) {
      const std::optional<std::uint32_t> taken = tell(tags_[place].tag.tag(), tags_.HashAt(place), locked);
      if (!taken.has_value()) return false;
      tags_[place].here = *taken > 0;
      RemoveIfDone(place);
      return true;
    });
  }

  // Calls use(hash) for each tag.
  template <class Lock, class Use>
  void ForEach(Lock&& lock, Use&& use) {
    tags_.ForEach(lock, [&](std::size_t place, auto&) { use(tags_.HashAt(place)); });
  }
  // Calls use(tag, locked) for each tag of which something is taken here, or was when peers were told last.
  template <class Lock, class Use>
  void ForEachHere(Lock&& lock, Use&& use) {
    tags_.ForEach(lock, [&](std::size_t place, auto&) {
      if (tags_[place].here) use(tags_[place].tag.tag(), place);
    });
  }
  // What the peer said counts no longer.
  template <class Lock>
  void Forget(Lock&& lock, std::uint32_t peer, Instant now) {
    tags_.ForEach(lock, [&](std::size_t place, auto&) { ForgetAt(place, peer, now); });
  }
  // Tells all of them again.
  template <class Lock>
  void TellAgain(Lock&& lock) {
    ForEachHere(lock, [&](const Tag&, std::size_t place) { tags_.SetUntold(place); });
  }

  std::uint64_t heard() const { return heard_.used(); }
  std::uint64_t crowded() const { return crowded_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kWays = 7, kHeardWays = 8;

  static constexpr std::uint32_t kNobody = kOwner - kSitesMax - 1;

  struct Gauge {
    KeptTag tag;
    bool here = false;              // something is taken here, or peers have been told so
    std::uint32_t by = kNobody;     // else it takes its place as one of that peer
    std::uint32_t elsewhere = 0;    // of which nothing runs out before recount_at
    Instant recount_at = Instant::min();
    std::uint32_t announced = 0;    // where this host owns the tag
    bool to_announce = false;
  };
  using Tags = ToldTable<Gauge, kWays>;
  struct Heard {
    Word word{};
    std::uint32_t peer = 0;
  };
  using Heards = SideTable<Heard, kHeardWays>;
  using Worth = std::pair<std::size_t, std::uint32_t>;    // of a tag that makes room: the least goes

  // The bits that choose the shard stay the tag's.
  static std::uint64_t KeyOf(std::uint64_t hash, std::uint32_t peer) {
    return hash ^ (std::uint64_t{peer} + 1) * 0x9e3779b97f4a7c15 >> 8;
  }
  static std::uint64_t HashOf(std::uint64_t key, std::uint32_t peer) { return KeyOf(key, peer); }    // its own inverse
  std::size_t OfPeerNear(std::uint64_t hash, std::uint32_t peer) const;
  std::size_t RoomHere(std::uint64_t hash) const;
  std::size_t RoomElsewhere(std::uint64_t hash, std::uint32_t peer, Instant now);
  std::size_t PlaceOf(const Tag& tag, std::uint64_t hash, std::size_t room);
  void SetUntold(std::size_t place);
  void ForgetAt(std::size_t place, std::uint32_t peer, Instant now);
  void RemoveIfDone(std::size_t place);
  template <class Use>
  void ForEachHeard(std::uint64_t hash, Use&& use);
  bool Keep(std::uint64_t hash, std::uint32_t peer, const Word& word, Instant now);
  std::size_t HeardNear(std::uint64_t key, std::uint32_t peer) const;
  void Displace(std::size_t heard, std::uint64_t hash, Instant now);
  void Recount(Gauge& gauge, std::uint64_t hash, Instant now);

  Tags tags_{kTags};
  Heards heard_{kHeard};
  std::atomic<std::uint32_t> peers_{0}, sites_{0};    // one more than the highest number that was heard
  std::atomic<std::uint64_t> crowded_{0};
  std::function<void()> wake_;
};

}    // namespace dthrottle
