// Quotas: how much of each tag all hosts together have served since the hour, day, week or month began (Rule::quota).
//
// Each host counts what it serves under a number of its own, and tells others how far it has come in the period. The
// further of two words about one counter counts, so loss, repetition and order of reports do not matter, and the sum
// over all counters is exact once all have been heard. It is late by as much as reports are: a host tells of a tag at
// once when it has served a quarter of its part of what is left, and else once a period of reports.
//
// A tag's period never begins again: a clock that is set back finds it as it was. The first host whose clock says that a
// period has begun begins it for a tag on all hosts that hear of it, at most a minute early, so clocks that differ give
// no tokens twice. A clock that is set back by more than a period takes its counts along, and takes them back when it is
// right again: until a period has gone by, only one that is later than all before begins. Kills and upgrades change
// nothing of that, since the clock of the core goes on. A boot begins that clock anew, so after one a wall clock that was
// once ahead costs a tag one period, or waits for as much time, and then it is forgotten. A tag that was first served while
// the clock was wrong has no earlier period.
//
// Where a few hosts own the tags (protocol/owners.md), the owner of a tag hears every counter, and tells other hosts the
// sum of all. A host takes from that what it has counted itself by then, so it never believes in more than there is.
// Where it knows other counters as well, the larger sum counts.
//
// The table is bounded, and its contents are in a file (quota_file.h). Where a set of it is full, the tag with the least
// use makes room. What peers say makes room only among what has ended. A peer may lie about use, so tags that it alone
// names have kOfPeer places of a set and more only while nobody else wants them: one of a peer that has more there makes
// room first, for a tag that is served here as for one of another peer.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/quota_word.h"
#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"
#include "quota/latest_periods.h"
#include "quota/quota_file.h"
#include "quota/quota_others.h"
#include "quota/quota_periods.h"
#include "rule/rulebook.h"

namespace dthrottle {

// Where a tag's quota stands.
struct QuotaStanding {
  std::uint64_t amount = 0, used = 0;    // tokens, by all hosts as far as they are known
  Instant ends{};                        // of the period
  Duration length{};

  std::uint64_t left() const { return amount - std::min(used, amount); }
};

struct QuotaCounts {
  std::uint64_t tags = 0;            // kept now
  std::uint64_t heard = 0;           // words of peers that counted
  std::uint64_t other_period = 0;    // that were of a period that is over, or far away
  std::uint64_t forgotten = 0;       // tags that made room before their period had ended
  std::uint64_t crowded = 0;         // words that there was no room for
  std::uint64_t disbelieved = 0;     // words about what came back, by two hosts for one counter, or by a host for
                                     // another site's; of all, by no owner
};

class Quotas {
 public:
  using Hash = std::function<std::uint64_t(const Tag&)>;

  static constexpr std::size_t kSlotsMin = 1024;
  static constexpr std::size_t RegionBytes(std::size_t slots) { return (slots + 1) * QuotaFile::kSlotBytes; }

  // The first three are as in QuotaFile. `hash` is that of the table of buckets. REQUIRES: the region has at least
  // kSlotsMin slots.
  Quotas(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh, const Hash& hash,
         QuotaCalendars::Calendar calendar, Instant now);

  QuotaCalendars& calendars() { return calendars_; }
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }
  // Any thread.
  void SetHosts(std::size_t hosts) { hosts_.store(hosts, std::memory_order_relaxed); }

  // ---- With the shard of the tag locked, any thread. REQUIRES: limit.quota > 0 ----

  QuotaStanding Look(std::uint64_t hash, const Limit& limit, Instant now);

  // The tag was served. Returns where it stands then.
  QuotaStanding Take(const Tag& tag, std::uint64_t hash, const Limit& limit, std::uint64_t tokens, Instant now);

  // So many come back that were taken then, if that was here and in this period.
  void GiveBack(std::uint64_t hash, const Limit& limit, std::uint64_t tokens, Instant taken, Instant now);

  // The tag has used nothing yet, as far as this host is concerned; what was taken before comes back no more. False: it
  // had not.
  bool Forgive(std::uint64_t hash, const Limit& limit, Instant now);

  // A peer, by number, says so. False: it does not count.
  bool Hear(const Tag& tag, std::uint64_t hash, const Limit& limit, const QuotaWord& word, std::uint32_t peer,
            Instant now);
  // The owner of the tag, a peer as well, says so of all hosts. False: it does not count.
  bool HearOwner(const Tag& tag, std::uint64_t hash, const Limit& limit, const QuotaWord& word, std::uint32_t peer,
                 Instant now);
  // Somebody said what came back of a count that only others may speak of.
  void Disbelieve() { disbelieved_.fetch_add(1, std::memory_order_relaxed); }
  bool Knows(std::uint64_t hash) const { return tags_.Find(hash) != Tags::kNone; }

  // What the owner of the tag says of all hosts. None: nothing is used.
  std::optional<QuotaWord> OfAll(std::uint64_t hash, const Limit& limit, Instant now);
  // The same of the hosts of this site, under its counter, for other sites.
  std::optional<QuotaWord> OfSite(std::uint64_t hash, const Limit& limit, std::uint64_t counter, Instant now);
  // Whether half of the quota is used or more.
  bool IsHalfUsed(std::uint64_t hash, const Limit& limit, Instant now);
  // Whether everybody is to hear of that, and then each time that what is left has changed by a quarter.
  bool IsNews(std::uint64_t hash, const Limit& limit, Instant now);

  // The places of tags, and the tag at one, whose shard is locked; none: there is no such tag.
  std::size_t places() const { return tags_.places(); }
  std::uint64_t HashAt(std::size_t place) const { return tags_.HashAt(place); }
  std::optional<Tag> TagOf(std::uint64_t hash) const;

  // ---- For the owner's thread, which locks the shard of a hash by `lock(hash)` ----

  bool any_untold() const { return tags_.any_untold(); }
  bool walking() const { return walk_ != Tags::kNone; }

  // Peers are to be told of what has changed; or of all, with what others have counted, for a host that has just come.
  void TellChanged() { walk_ = walking() ? walk_ : 0; }
  void TellAll() { walk_ = 0, walk_all_ = true; }

  // What was heard and told of a tag, over a restart in which peers keep their numbers.
  struct KeptTag {
    std::uint64_t hash = 0, period = 0, news = kNever;
    std::vector<QuotaOthers::Said> others{};

    static void Fields(auto& state, auto& self) { state(self.hash, self.period, self.news, self.others); }
  };
  template <class Lock>
  std::vector<KeptTag> Keep(Lock&& lock) {
    std::vector<KeptTag> all;
    tags_.ForEach(lock, [&](std::size_t place, auto&) {
      const Entry& its = tags_[place];
      auto others = QuotaOthers::Keep(its.others);
      if (others.empty() && its.news == kNever) return;
      all.push_back({tags_.HashAt(place), file_.slot(its.slot).period, its.news, std::move(others)});
    });
    return all;
  }
  template <class Lock>
  void Resume(const std::vector<KeptTag>& all, Lock&& lock) {
    for (const KeptTag& its : all) {
      const auto locked = lock(its.hash);
      Entry* const entry = Find(its.hash);
      if (entry == nullptr || file_.slot(entry->slot).period != its.period) continue;
      entry->news = its.news;
      QuotaOthers::Resume(entry->others, its.others);
    }
  }

  // Calls tell(tag, word, locked) for what is to be told at once, and for some of what is to be told else, until it
  // returns false: there is no room now. True: there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Instant now, Tell&& tell) {
    const auto tell_own = [&](std::size_t place, auto& locked) { return TellOwn(tags_[place], locked, now, tell); };
    if (tags_.TellSome(lock, tell_own)) return true;
    for (std::size_t n = 0; walking() && n < kPlacesPerSlice; ++n, ++walk_) {
      if (walk_ == tags_.places()) {
        walk_ = Tags::kNone, walk_all_ = false;
        return false;
      }
      const std::uint64_t hash = tags_.HashAt(walk_);
      if (hash == 0) continue;
      auto locked = lock(hash);
      if (tags_.HashAt(walk_) != hash) continue;
      Entry& its = tags_[walk_];
      if ((walk_all_ || its.told != Version(its)) && !tell_own(walk_, locked)) return true;
      if (walk_all_ && !TellOthers(its, locked, now, tell)) return true;
    }
    return walking();
  }

  QuotaCounts counts() const;

 private:
  static constexpr std::size_t kWays = 7, kPlacesPerSlice = 512;
  static constexpr Duration kEarly = std::chrono::minutes(1);
  static constexpr std::uint64_t kNever = UINT64_MAX;
  static constexpr std::size_t kOfPeer = 2, kOfPeers = 3;    // places of a full set that one peer keeps, and all
  static constexpr std::uint32_t kHere = UINT32_MAX, kNobody = UINT32_MAX - 1;

  struct Entry {
    std::uint32_t slot = 0;
    std::uint64_t told = 0;         // the Version that peers know
    std::uint64_t news = kNever;    // what was left when everybody heard of it; kNever: more than half
    QuotaOthers::OfTag others;      // in the period of the slot
    Instant begun{};                // since when it is counted here, which may be before that begins; 0: not known
    std::uint32_t by = kNobody;     // the peer that it takes its place as one of; kHere: it was served here in the period
  };
  using Tags = ToldTable<Entry, kWays>;
  using Count = std::atomic<std::uint64_t>;
  using Worth = std::pair<std::size_t, std::uint64_t>;    // of a tag that makes room: the least goes; 0 of one that is over

  QuotaSlot::OfTag& Own(const Entry& entry) const { return file_.slot(entry.slot).own; }
  std::uint64_t Version(const Entry& entry) const { return Own(entry).taken + Own(entry).back; }
  std::uint64_t Used(const Entry& entry) const;
  std::uint64_t LeftOfAll(const Entry& entry, const Limit& limit) const;
  std::optional<QuotaWord> WordOf(const Entry& entry, std::uint64_t counter, QuotaCount sum) const;
  QuotaSpan Roll(Entry& entry, const Limit& limit, Instant now);
  void MoveTo(Entry& entry, const QuotaSpan& span);
  void BeginPeriod(Entry& entry, const QuotaSpan& span, Instant now);
  bool IsOver(const Entry& entry, Instant now) const { return latest_.IsOver(file_.slot(entry.slot), now); }
  template <class WorthOf>
  Entry* Make(const Tag& tag, std::uint64_t hash, const QuotaSpan& span, WorthOf&& worth, Instant now);
  Entry* Find(std::uint64_t hash);
  std::size_t OfPeerNear(std::uint64_t hash, std::uint32_t peer) const;
  std::optional<Worth> WorthHere(std::size_t place, Instant now) const;
  std::optional<Worth> WorthElsewhere(std::size_t place, std::uint32_t peer, Instant now) const;
  Entry* InPeriod(const Tag& tag, std::uint64_t hash, const Limit& limit, std::uint64_t period, std::uint32_t peer,
                  Instant now);
  QuotaStanding StandingOf(const Entry& entry, const Limit& limit, const QuotaSpan& span) const;
  void TellSoon(const Entry& entry, std::uint64_t hash, const QuotaStanding& standing);
  void Restore(const Hash& hash);
  void RestoreOthers(std::span<Entry* const> by_slot);
  void Inherit();

  template <class Locked, class Tell>
  bool TellOwn(Entry& entry, Locked& locked, Instant now, Tell&& tell) {
    if (Version(entry) == 0 || IsOver(entry, now)) return true;
    const QuotaSlot& slot = file_.slot(entry.slot);
    if (!tell(slot.tag(), QuotaWord{file_.counter(), slot.period, slot.own.taken, slot.own.back}, locked)) return false;
    entry.told = Version(entry);
    return true;
  }
  template <class Locked, class Tell>
  bool TellOthers(const Entry& entry, Locked& locked, Instant now, Tell&& tell) {
    if (IsOver(entry, now)) return true;
    const QuotaSlot& slot = file_.slot(entry.slot);
    for (const QuotaOthers::Other& other : entry.others.each()) {
      if (other.counter == kAllHosts) continue;
      if (!tell(slot.tag(), QuotaWord{other.count->counter, slot.period, other.count->net(), {}}, locked)) return false;
    }
    return true;
  }

  QuotaFile file_;
  Tags tags_;
  QuotaOthers others_;
  QuotaCalendars calendars_;
  LatestPeriods latest_;
  std::atomic<std::size_t> hosts_{1};
  std::size_t walk_ = Tags::kNone;
  bool walk_all_ = false;
  std::function<void()> wake_;
  Count heard_{0}, other_period_{0}, forgotten_{0}, crowded_{0}, disbelieved_{0};
};

}    // namespace dthrottle
