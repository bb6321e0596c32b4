// What this host may serve of a tag, divided among the tags that are charged with it (Rule::among): DST section 7,
// Algorithms 1 and 2.
//
// Once a cycle what the tags asked for is compared with what the bucket of the tag that they are charged with can give.
// If that is less, Among::kRatio serves every query with the same probability, so that all tags keep the same share of
// what they ask for, and Among::kLevel serves every tag up to the same level, so that only the largest are cut. The
// bucket has the last word in either case, so the limit holds whatever is counted here.
//
// Where hosts share the limit by reports, a tag's level is what all hosts together serve of it. Every host adds to what
// is asked here what peers report of the tag, and finds nearly the same level, because all of them see nearly the same
// bucket. A tag that asks for more than its level gets on each host the part of the level that the host has served of it
// lately (`here` of `here` and `there`): these parts sum to one whatever each host knows, so the tag's hits do, and no
// host asks another. A host with less than an equal part may serve a little more, which keeps parts from moving to the
// host that finds the highest level.
//
// Where a host owns the tag that is divided (protocol/owners.md), the others do not hear of each other's tags. Each
// tells the owner what its tags asked for and what it served of them. The owner finds the level as above, and says to
// each what the tags that it named get on all hosts together. A host's part of a tag is what the host had served of it
// as of that word. Owners of other sites (protocol/sites.md) tell it what all hosts of their site were asked for.
//
// A query that is refused asks for as much as it would have used: what it costs, times the part of their cost that
// served queries use (used_part.h). With their full cost, holds that are refused because of one surge would look like
// so much demand that they went on being refused.
//
// Departures from the paper, which gives each tag a number of requests for the whole cycle: a tag spends its level as
// time passes, and some of it at once, because the bucket may hold less than a cycle's tokens. One that asked for nothing
// in the cycle before is served, because its limit would be 0. Where there is enough nobody is cut, so what a tag did not
// ask for in the last cycle is not lost (capacity/divide.h: `reserve`).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/member_word.h"
#include "base/prng.h"
#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "rule/rule.h"
#include "share/among/group.h"
#include "share/among/members.h"
#include "share/among/peer_parts.h"
#include "share/debit/word.h"

namespace dthrottle {

struct AmongCounts {
  std::uint64_t divided = 0;    // tags that are divided among others, now
  std::uint64_t cut = 0;        // queries refused because their tag had its part
  std::uint64_t crowded = 0;    // times that a tag had no part of its own any more, because too many asked
  std::uint64_t disbelieved = 0;    // tokens that peers said members were served, and that did not count
};

// Guarded by the lock of the shard of the tag that is divided, as every SideTable.
class AmongTags {
 public:
  static constexpr Duration kCycle = AmongGroup::kCycle;
  static constexpr std::size_t kTagsMax = 512;    // that are divided at once; others are served first come

  AmongTags() : groups_(kTagsMax) {}

  // What a tag that is charged to a divided one is called here, and between hosts.
  static std::uint64_t NameOf(const Tag& member);

  // The tag that is divided.
  struct Divided {
    const Tag& tag;
    std::uint64_t hash;
    Among among;
    std::size_t hosts = 1;    // that share its limit by reports, at kLevel
    Duration period{};        // of these reports
    double weight_max = 1;    // of any member, by the limits here
  };
  // A query of a tag that is charged to it.
  struct Charge {
    Divided divided;
    std::uint64_t member;    // NameOf
    Cost cost;
    bool holds = false;    // and settles later
    double weight = 1;     // of the member, at kLevel
  };

  // Whether the division lets the query through.
  bool Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const;

  // Whether Count will divide, and goes by the level that it is told.
  bool IsDue(std::uint64_t divided, Instant now) const;
  // The query was served, or it was refused by the division or by the bucket of the divided tag, which has the shape and
  // `level` tokens.
  void Count(const Charge& charge, bool served, const Shape& shape, Tokens level, Instant now);
  // A query of the member that was served for `paid` tokens has cost `actual`. `held`: as of Charge.
  struct Settled {
    Cost paid, actual;
    bool held;
  };
  void Settle(std::uint64_t divided, std::uint64_t member, const Settled& settled, Instant now);
  // A peer has served so many hits of the divided tag. What it says of members counts as far as these bear it out
  // (peer_parts.h). Nothing, where nobody asked for the divided tag here lately; the next one too.
  void HearHits(std::uint64_t divided, std::uint64_t hits, const Speaker& speaker, Instant now);
  // The same of the member.
  void Hear(std::uint64_t divided, std::uint64_t member, double weight, std::uint64_t hits, const Speaker& speaker,
            Instant now);

  // ---- Where a host owns the divided tag, by kLevel ----

  // The owner hears it of a peer, or of another site. `shape` and `level` as of Count.
  void HearPeer(const Divided& divided, const MemberWord& word, const Speaker& speaker, const Shape& shape,
                Tokens level, Instant now);
  std::optional<Tag> TagOf(std::uint64_t divided) const;
  // What the owner says of the member to hosts; none: it knows nothing of it.
  std::optional<MemberWord> WordOf(std::uint64_t divided, std::uint64_t member, Instant now) const;
  // The owner says it.
  void HearOwner(std::uint64_t divided, const MemberWord& word, Instant now);

  // Calls tell(tag, word, locked) for what the owner has not been told, until it returns false: there is no room now.
  // True: there is more to tell. `lock(hash)` locks a shard. The owner's thread.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Instant now, Tell&& tell) {
    return Walk(told_, lock, now, [&](AmongGroup& group, AmongMember& member, auto& locked) {
      const bool any = member.untold.asked != 0;
      if (!any && now - member.told_at < kCycle / 2) return true;    // told before there was no room
      if (any && !tell(group.tag.tag(), WordAbout(member.name, member.untold, 1, member.weight), locked)) return false;
      group.Told(member, now);
      return true;
    });
  }
  // The same for what other sites have not been told: of this host and of peers.
  template <class Lock, class Tell>
  bool TellSitesSome(Lock&& lock, Instant now, Tell&& tell) {
    return Walk(told_sites_, lock, now, [&](AmongGroup& group, AmongMember& member, auto& locked) {
      if (member.to_sites.asked == 0) return true;
      if (!tell(group.tag.tag(), WordAbout(member.name, member.to_sites, 1, member.weight), locked)) return false;
      member.to_sites = {};
      return true;
    });
  }

  // ---- For people ----

  void CountCut() { cut_.fetch_add(1, std::memory_order_relaxed); }

  DividedAmong Of(std::uint64_t divided, Instant now) const;
  AmongCounts counts() const { return {groups_.used(), cut_.load(), crowded_.load(), disbelieved_.load()}; }

 private:
  static constexpr double kUncut = AmongMember::kUncut;
  static constexpr std::size_t kWays = 8;

  static AmongPeerParts::Bounds BoundsOf(const AmongGroup& group, const Speaker& speaker);
  MemberUse Believed(const AmongGroup& group, const Speaker& speaker, MemberUse said, Instant now);
  static MemberWord WordAbout(std::uint64_t member, const MemberUse& use, double times, double fair);
  // Calls each(group, member, locked) from that place on, until it returns false. True: there are more.
  template <class Lock, class Each>
  bool Walk(std::size_t& place, Lock&& lock, Instant now, Each&& each) {
    for (; place < groups_.places(); ++place) {
      const std::uint64_t hash = groups_.HashAt(place);
      if (hash == 0) continue;
      auto locked = lock(hash);
      if (groups_.HashAt(place) != hash || groups_[place].IsOld(now)) continue;
      AmongGroup& group = groups_[place];
      const auto one = [&](AmongMember& member) { return each(group, member, locked); };
      if (!members_.ForEachWhile(group.list, one)) return true;
    }
    place = 0;
    return false;
  }
  // Null: the tag is not divided here, or nobody asks for it any more.
  const AmongGroup* Find(std::uint64_t divided, Instant now) const;
  // The same where hosts share its limit by reports.
  AmongGroup* FindShared(std::uint64_t divided, Instant now);
  AmongGroup* FindOrAdd(const Divided& divided, Instant now);
  AmongGroup* Begin(const Divided& divided, const Shape& shape, Tokens level, Instant now);
  AmongMember* FindOrAdd(AmongGroup& group, std::uint64_t name, double weight, Instant now);

  SideTable<AmongGroup, kWays> groups_;
  AmongMembers members_;
  AmongPeerParts peers_;
  std::size_t told_ = 0, told_sites_ = 0;    // places of which the owners, and other sites, have been told
  std::atomic<std::uint64_t> cut_{0}, crowded_{0}, disbelieved_{0};
};

}    // namespace dthrottle
