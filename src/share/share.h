// What a way of sharing a limit among hosts is.
//
// The limiter finds a tag's bucket and the limit that applies, and then asks a way of sharing whether the query is
// within the limit. A way is a class in a folder of its own beside this file; ways.h lists them, and nothing else names
// them to the limiter or to each other's reports. All calls go through templates over that list, so a decision makes no
// virtual call, and deleting a folder and its line removes a way. A limit that no way of the list has is the host's
// alone.
//
// A way derives from Way, says in Has which limits are its own, and decides queries under them in Decide. Everything
// else has an answer in Way that a way hides where it has a better one: the bucket's shape on this host, what a peer's
// word means, what goes into reports and when, what people see. A way keeps its state itself; the lock of a tag's shard
// guards what it keeps of that tag.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tag.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "bucket/table_lookup.h"
#include "hold/gauges.h"
#include "hold/in_flight.h"
#include "penalty/penalties.h"
#include "quota/quotas.h"
#include "rule/rulebook.h"
#include "share/accuracy/certificate.h"
#include "share/among/among_tags.h"
#include "share/check.h"
#include "share/debit/draft.h"
#include "share/debit/word.h"
#include "share/loans.h"
#include "share/observer.h"
#include "share/owners/silent_owners.h"
#include "tally/tally.h"

namespace dthrottle {

class Ownership;
class SiteSums;

// What the limiter and its ways of sharing work on together.
struct LimiterCore {
  explicit LimiterCore(std::size_t lanes) : tally(lanes) {}

  const Limit& limit(LimitIndex index) const { return rules->limit(index); }

  // Changed only while every shard of the table is locked, read while one is.
  std::shared_ptr<const Rulebook> rules;
  std::size_t tag_bytes_max = kTagBytesMax;    // of tags that do not go by their digest; set before the first query
  std::size_t peers = 0;                       // other hosts
  // How many hosts an owner of tags knows, for the owner's thread: in this site, this one included, and in other sites.
  std::size_t here = 1, abroad = 0;
  double root_hosts = 1;    // square root of the number of all hosts
  Ticks window = 0;         // between reports; 0: there are none
  Ticks waste_window = 0;    // the longest between those that come, also of other sites
  Instant began{};           // of this process
  Tally tally;
  std::unique_ptr<Table> table;
  Loans loans;                         // of tags; those of a tag by the lock of its shard
  std::unique_ptr<AmongTags> among;    // from the first rules on that need it
  Penalties penalties;    // an entry by the lock of its tag's shard
  std::unique_ptr<InFlight> in_flight;    // as among
  std::unique_ptr<Gauges> gauges;         // together with it
  std::shared_ptr<const SilentOwners> silent_owners;    // as rules; null: all owners are heard
  // For the owner's thread. Null: this host has no peers; there is one site.
  const Ownership* ownership = nullptr;
  SiteSums* site_sums = nullptr;
  std::vector<PeerAge> sites;    // the other sites, as their reports show them

  Observed observed;

  // Makes room for what the rules in force need. Before the table is open, or with it locked.
  void MakeRoom();

  // For the owner's thread: the lock of a shard.
  auto ShardLock() {
    return [this](std::uint64_t hash) { return Table::Shard(*table, hash); };
  }
};

// One query under a limit, while the shard of its tag is locked.
struct Asked {
  const Query& query;
  std::uint64_t hash;
  LimitIndex index;
  const Limit& limit;
  Table::Locked& shard;
  Slot* slot;          // null: the bucket is full and takes no memory
  std::size_t lane;    // of the thread
  Instant now;
  Shape shape;    // of the bucket on this host
  Bucket fresh{};

  Bucket& bucket() { return slot != nullptr ? slot->bucket : fresh; }
  // The bucket gave tokens: a slot keeps it from now on, if there is room.
  void Keep() {
    if (slot == nullptr && !fresh.IsFull(now)) slot = shard.Insert(query.tag, fresh, index, Source::kQuery, now);
  }
  void Refused() {
    if (slot != nullptr) shard.Refused(slot);
  }
};

// A query under a limit that is looked at and not decided, while the shard of its tag is locked.
struct Looked {
  const Query& query;
  std::uint64_t hash;
  const Limit& limit;
  const Slot* slot;    // as in Asked
  Instant now;
  Shape shape;      // of the bucket on this host
  Bucket bucket;    // a copy of the slot's

  bool Within() const {
    Bucket after = bucket;
    return after.Take(shape, query.cost, now);
  }
};

// Decides as if there were no other host.
inline bool DecideAlone(Asked& asked) {
  const bool within = asked.bucket().Take(asked.shape, asked.query.cost, asked.now);
  within ? asked.Keep() : asked.Refused();
  return within;
}

// A tag that a peer spoke of, or that somebody looks at, while its shard is locked.
struct TagAt {
  const Tag& tag;
  std::uint64_t hash;
  const Limit& limit;
  const Slot* slot;

  Tokens Uncapped(Instant now) const { return (slot != nullptr ? slot->bucket : Bucket()).Uncapped(limit.shape, now); }
  Tokens Level(Instant now) const { return (slot != nullptr ? slot->bucket : Bucket()).Level(limit.shape, now); }
};

inline constexpr std::uint32_t kNobody = UINT32_MAX;    // number of no peer

// A number that stands beside an entry, such as a demand, is said in thousandths.
inline std::uint64_t Thousandths(double number, std::uint64_t most) {
  return static_cast<std::uint64_t>(std::clamp(std::round(1000 * number), 0.0, static_cast<double>(most)));
}

// What all hosts make of a tag until they report.
struct Foretold {
  Tokens level;         // less what peers are foretold to have served
  double demand;        // of all hosts, tokens/s
  OwnersWord to_peer;
  double demand_here, earned;    // for other sites, as Forecast has them
};

struct Inspection;
struct ShareStatus;
class Ways;

class Way {
 public:
  // ---- Settings (check.h) ----

  // static constexpr Share kShare: the value of a rule's `share` that means this way.

  // The most that hosts serve beyond the limit before all have heard of it; none: there is no such bound.
  static std::optional<Tokens> Excess(const Rule&, const FleetTerms&) { return std::nullopt; }
  // Adds what the way does badly with the numbers of the rule.
  static void Check(const Rule&, const FleetTerms&, std::vector<std::string>&) {}

  // ---- Queries: with the shard of the tag locked, any thread ----

  // bool Has(const Limit&) const: whether this way decides under the limit. The first in the list that says so does.
  // bool Decide(Asked&): whether the query is within the limit. Takes its tokens if so.

  // What a hold has cost beyond what it held has been charged to the bucket.
  void Charged(Asked&) {}
  // Tokens that were spent before have come back to the bucket.
  void CameBack(Asked&, Cost) {}

  // Sets the shape and the bucket that Decide would ask, before tokens are lent or come back.
  void Prepare(Asked&) {}
  // How many tokens of the tag's bucket may be out at once (loans.h): with so few out it alone decides, in that shape.
  static constexpr Tokens kLendAll = std::numeric_limits<Tokens>::infinity();
  Tokens MayLend(const Asked&) { return kLendAll; }
  // So many tokens that were lent have been spent since then.
  void Spent(Asked&, Cost, Instant /*since*/) {}

  // What Decide has served waits so long for its turn. Returns up to how much longer by chance it is to wait.
  Duration Waits(Asked&, Duration /*wait*/) { return Duration::zero(); }

  // Decide, where something else than the bucket says no.
  void Refuse(Asked& asked) { asked.Refused(); }

  // Whether Decide would say so at the same instant. Spends, counts and records nothing; what is kept of the tag may be
  // brought up to now. Sets the shape and the bucket that Decide would ask.
  bool Would(Looked& looked) { return looked.Within(); }

  Shape ShapeOf(const Tag&, const Limit& limit, Instant) const { return limit.shape; }
  // How many places of a tag may be taken on this host. REQUIRES: the limit has some.
  std::uint32_t PlacesHere(const Tag&, std::uint64_t, const Limit& limit, Instant) { return limit.in_flight; }
  // One was wanted, and all of these were taken.
  void PlaceWanted(const Tag&, std::uint64_t, Instant) {}
  // Whether a bucket in the table can be under the limit; false: its bytes are not ours.
  static bool Plausible(const Bucket& bucket, const Limit& limit, Instant now) {
    constexpr double kDrainedMax = 1e4;    // debt has a floor far above this
    return bucket.Drained(limit.shape, now) <= kDrainedMax;
  }
  void Inspect(const TagAt&, Inspection&, Instant) {}

  // ---- Rules, with the table locked or before it is open ----

  void Adopted() {}                  // others are in force
  void Reassigned(std::size_t) {}    // this counter counts for another rule

  // ---- What peers say and are told: the owner's thread ----

  // The instant as of which hits that a peer reports are charged to the tag's bucket.
  Heed Hear(const PeerWord& word, const TagAt&, Instant) { return Heed::AsStated(word); }
  // A peer has given back tokens that it had spent, and they are in the bucket.
  void PeerGaveBack(const TagAt&, Cost, Instant) {}
  // Until when hits of the tag have been reported; none: until the latest report of all. Where a host owns the tag, its
  // word counts once it contains them. With the shard locked, as the next.
  std::optional<Instant> ReportedAt(std::uint64_t) { return std::nullopt; }
  // The level by what the owner said, all that others have served since as foretold; none: it has said nothing.
  std::optional<Tokens> LevelByOwner(std::uint64_t) const { return std::nullopt; }
  // Says what is foretold of a tag that is watched; none: it is not. Where this host owns it, it tells `peer`.
  std::optional<Foretold> ForetoldOf(const TagAt&, std::uint32_t /*peer*/, Instant) { return std::nullopt; }
  // What the tag's owner says of all other hosts; the bucket is as it says.
  void OwnerSaid(const OwnersWord&, const TagAt&, Instant) {}
  // This host owns the tag, and the bucket is what all hosts have made of it.
  void OwnedHere(const TagAt&, Instant) {}
  // From now on up to so many tags (rounded up) are watched, so that peers hear early of their hits. The way calls
  // `wake`, from any thread, when something is urgent, once until ReportUrgent.
  void WatchTags(std::size_t, const std::function<void()>& /*wake*/) {}
  // Whether peers can hear of hits now.
  void SetHeard(bool) {}
  // Whether the hits of a slot can wait for a later report than that of this period. With the shard of the tag locked.
  bool CanWait(const Tag&, Instant) { return false; }
  // Puts the hits of a slot into a report on (from, to]; false: there is no room. None: the way has nothing to add to
  // what every report says.
  std::optional<bool> Report(const Tag&, const Slot&, const Waste&, Instant, Instant, Draft&) { return std::nullopt; }
  // When ReportUrgent wants to be called, though not more often than every kUrgentEvery. It hands over what cannot wait
  // for the period to end, of hits since `from`; true: not all of it found room.
  static constexpr Duration kUrgentEvery = std::chrono::milliseconds(5);
  Instant urgent_at() const { return Instant::max(); }
  bool ReportUrgent(Instant, Instant, Draft&) { return false; }
  // A period of reports ends; a host that has just come takes a snapshot.
  void PeriodEnds(Instant) {}
  void Joined() {}

  // ---- Quotas of rules: the owner's thread ----

  // Whether the way counts them.
  static constexpr bool kCountsQuotas = false;
  // Where it does; null: nowhere as yet. Any thread, with a shard locked.
  Quotas* quotas() const { return nullptr; }
  // Counts them there from now on. Once.
  void KeepQuotas(std::unique_ptr<Quotas>&&) {}
  // Follows the clock: once a second.
  void FollowCalendar() {}

  // ---- For people ----

  // The most that hosts together serve of a tag above burst + rate x time; none if there is no bound.
  std::optional<Tokens> Bound(const Limit&, std::span<const PeerAge> peers) const {
    return peers.empty() ? std::optional(0.0) : std::nullopt;
  }
  void AddStatus(ShareStatus&) const {}
};

template <class W>
struct WayHolder {
  WayHolder(LimiterCore& core, Ways& ways) : way(core, ways) {}
  W way;
};

// The ways, in the order in which they are asked.
template <class... W>
class WayList : private WayHolder<W>... {
 public:
  WayList(LimiterCore& core, Ways& ways) : WayHolder<W>(core, ways)..., core_(core) {}

  static bool Knows(Share share) { return ((W::kShare == share) || ...); }
  static std::optional<Tokens> Excess(Share share, const Rule& rule, const FleetTerms& fleet) {
    std::optional<Tokens> excess;
    (void)((W::kShare == share && (excess = W::Excess(rule, fleet), true)) || ...);
    return excess;
  }
  static void Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
    (void)((W::kShare == rule.share && (W::Check(rule, fleet, warnings), true)) || ...);
  }

  LimiterCore& core() { return core_; }
  const LimiterCore& core() const { return core_; }

  template <class T>
  T& Get() {
    return static_cast<WayHolder<T>&>(*this).way;
  }
  template <class T>
  const T& Get() const {
    return static_cast<const WayHolder<T>&>(*this).way;
  }

  [[gnu::always_inline]] bool Decide(Asked& asked) {
    bool within = false;
    const bool had = ((Get<W>().Has(asked.limit) && (within = Get<W>().Decide(asked), true)) || ...);
    return had ? within : DecideAlone(asked);
  }
  bool Would(Looked& looked) {
    return With(looked.limit, [&](auto& way) { return way.Would(looked); });
  }
  // Asks the way that has the limit, or Way if none has.
  template <class Ask>
  auto With(const Limit& limit, Ask&& ask) {
    return AskIts<W...>(*this, limit, ask);
  }
  template <class Ask>
  auto With(const Limit& limit, Ask&& ask) const {
    return AskIts<W...>(*this, limit, ask);
  }
  // The level of a tag that is watched, less what peers are foretold to have served.
  std::optional<Tokens> ForetoldLevel(const TagAt& at, Instant now) {
    const auto foretold = With(at.limit, [&](auto& way) { return way.ForetoldOf(at, kNobody, now); });
    return foretold ? std::optional(foretold->level) : std::nullopt;
  }
  // Tells all of them.
  template <class Tell>
  void Each(Tell&& tell) {
    (tell(Get<W>()), ...);
  }
  template <class Tell>
  void Each(Tell&& tell) const {
    (tell(Get<W>()), ...);
  }

  // The same of all of them: the earliest urgent_at, ReportUrgent of one after the other.
  void WatchTags(std::size_t tags, const std::function<void()>& wake) { (Get<W>().WatchTags(tags, wake), ...); }
  void SetHeard(bool heard) { (Get<W>().SetHeard(heard), ...); }
  Instant urgent_at() const { return std::min({Get<W>().urgent_at()...}); }
  bool ReportUrgent(Instant from, Instant now, Draft& out) { return (Get<W>().ReportUrgent(from, now, out) || ...); }

  // The same of the way that counts quotas, if one does.
  static constexpr bool kCountsQuotas = (W::kCountsQuotas || ...);
  Quotas* quotas() const {
    Quotas* found = nullptr;
    (void)((found = Get<W>().quotas()) || ...);
    return found;
  }
  bool HasQuota(const Limit& limit) const { return limit.quota > 0 && quotas() != nullptr; }
  void KeepQuotas(std::unique_ptr<Quotas>&& quotas) { (Get<W>().KeepQuotas(std::move(quotas)), ...); }
  void FollowCalendar() { (Get<W>().FollowCalendar(), ...); }

 private:
  // The answer is built where the caller wants it: copies of one with optional parts cost more than what most ways do.
  template <class First, class... Rest, class List, class Ask>
  static auto AskIts(List& list, const Limit& limit, Ask& ask) {
    if (auto& way = list.template Get<First>(); way.Has(limit)) return ask(way);
    if constexpr (sizeof...(Rest) > 0) {
      return AskIts<Rest...>(list, limit, ask);
    } else {
      Way none;
      return ask(none);
    }
  }

  LimiterCore& core_;
};

}    // namespace dthrottle
