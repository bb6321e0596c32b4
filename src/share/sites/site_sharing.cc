#include "share/sites/site_sharing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "share/pace_of.h"
#include "share/said_tag.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kEntriesPerSlice = 256;
constexpr Duration kJudgeEvery = 20ms;          // tags that were named are looked at together
constexpr std::uint64_t kHostsMax = 1 << 16;    // of one site
constexpr std::size_t kUntoldWord = 6;          // of those beside the table, behind bus/account.h

}    // namespace

SiteSharing::SiteSharing(Ways& ways, ToPeersRing& to_sites, FromPeersRing& from_sites, const Options& options,
                         Prng& prng, Instant now)
    : ways_(ways),
      debits_(ways.Get<Debits>()),
      table_(*ways.core().table),
      from_sites_(from_sites),
      options_(options),
      sums_(table_.words()[kUntoldWord], debits_.account_to_sites()),
      words_(ways, sums_, options.name, options.others, counts_),
      outlet_(to_sites),
      from_(now),
      to_(now),
      report_at_(now +
                 Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(options.period.count()))))),
      hosts_(options.others, 1) {
  ways_.core().site_sums = &sums_;
  debits_.ShareAbroad(options_.period);
  CountHosts();
}

SiteSharing::~SiteSharing() {
  ways_.core().site_sums = nullptr;
  ways_.core().abroad = 0;
  ways_.core().sites.clear();
}

// Hosts of this site are to hear of it.
void SiteSharing::Moved(const Entries& entries, Instant now) {
  const Ownership* const ownership = ways_.core().ownership;
  if (ownership != nullptr && ownership->owning() != nullptr) ownership->owning()->NamedAbroad(entries, now);
}

void SiteSharing::CountHosts() {
  ways_.core().abroad = std::accumulate(hosts_.begin(), hosts_.end(), std::uint64_t{0});
}

Instant SiteSharing::next() const {
  if (outlet_.retry_at()) return *outlet_.retry_at();
  const bool judges = sums_.any_changed() || sums_.penalties().any() || !urgent_.entries.empty();
  return judges ? std::min(report_at_, judge_at_) : report_at_;
}

bool SiteSharing::Work(Instant now) {
  outlet_.Retry();
  if (now >= report_at_ && !collecting_) Begin(now);
  bool more = false;
  if (now >= judge_at_) more = Judge(now);
  if (collecting_) more = CollectSome(now) || more;
  more = Merge(now) || more;
  return more && !outlet_.retry_at();
}

// ---- What other sites say ----

bool SiteSharing::Merge(Instant now) {
  if (ways_.core().ownership == nullptr) return false;    // it is not known yet who owns what
  if (incoming_.kind == FromPeers::Kind::kNone) {
    if (!from_sites_.TryPop(incoming_)) return false;
    merged_ = 0;
  }
  if (incoming_.kind == FromPeers::Kind::kDebits && incoming_.peer < hosts_.size()) MergeSome(now);
  if (merged_ == incoming_.entries.size() || incoming_.kind != FromPeers::Kind::kDebits) incoming_ = FromPeers();
  return incoming_.kind != FromPeers::Kind::kNone || !from_sites_.empty();
}

// Every owner of this site hears of all tags, and takes those that it owns.
void SiteSharing::MergeSome(Instant now) {
  Entries ours;
  const std::size_t end = std::min(incoming_.entries.size(), merged_ + kEntriesPerSlice);
  for (; merged_ < end; ++merged_) {
    const Entry& e = incoming_.entries.list()[merged_];
    const Tag tag = incoming_.entries.tag(e);
    if (const auto quota = incoming_.entries.quota(e)) {    // also where it may come to own the tag
      if (quota->counter < kHostCounters) ours.Add(tag, 0, 0, {.quota = quota});
    } else if (!OwnsHere(ways_.core(), tag)) {
      ++counts_.passed;
    } else if (const auto places = incoming_.entries.places(e)) {
      ours.Add(tag, 0, 0, {.places = places});
    } else if (const auto member = incoming_.entries.member(e)) {
      ours.Add(tag, 0, 0, {.member = member});
    } else if (const auto left = incoming_.entries.penalty(e)) {
      ours.Add(tag, 0, 0, {.penalty = left});
      const Instant until = incoming_.to + std::chrono::milliseconds(*left);
      sums_.penalties().Heard(table_.Hash(TableTag(tag)), until, now);
    } else if (!IsAssumed(tag, incoming_.to)) {
      ours.Add(tag, e.value, e.phase, {.demand = incoming_.entries.demand(e)});
    }
  }
  counts_.heard += ours.size();
  hosts_[incoming_.peer] = std::clamp<std::uint64_t>(incoming_.hosts, 1, kHostsMax);
  if (ours.empty()) return;
  Speaker site(incoming_.peer);
  site.abroad = true;
  site.hosts = hosts_[incoming_.peer];
  site.period = options_.period;
  debits_.Debit(ours, 0, ours.size(), incoming_.from, incoming_.to, now, site);
  if (const auto observer = ways_.core().observed.observer()) {
    observer->Heard(ours, 0, ours.size(), incoming_.from, incoming_.to, site, now);
  }
  CountHosts();
  Moved(ours, now);
}

// What a site says late of a time in which something was assumed in its place.
bool SiteSharing::IsAssumed(const Tag& said, Instant to) const {
  if (to <= assumed_from_ || to > assumed_until_) return false;
  const Rulebook& rules = *ways_.core().rules;
  const auto index = LimitOfSaid(rules, nullptr, said);
  return index && rules.limit(*index).keeps_part;
}

// ---- What other sites are told ----

// Calls see(look) unless the tag has no limit any more.
template <class See>
bool SiteSharing::LookAt(std::uint64_t hash, const SiteSums::Sum& sum, Instant now, See&& see) {
  Table::Shard shard(table_, hash);
  const Tag said = sum.said(), tag = TableTag(said);
  const LimiterCore& core = ways_.core();
  const Slot* const slot = shard.Find(tag, now);
  const auto index = LimitOfSaid(*core.rules, slot, said);
  if (!index || !core.limit(*index).shared) return false;
  const Limit& limit = core.limit(*index);
  Pace pace = PaceOf(core, limit);
  pace.period = Seconds(options_.period);
  const TagAt at{tag, hash, limit, slot};
  see(Look{limit, pace, ways_.With(limit, [&](auto& way) { return way.ForetoldOf(at, kNobody, now); })});
  return true;
}

void SiteSharing::Begin(Instant now) {
  collecting_ = true;
  to_ = now;
  words_.PeriodBegins(now);
  round_ = sums_.TakeAll();
  report_at_ += options_.period * ((now - report_at_) / options_.period + 1);
}

// Whether there is more to do.
bool SiteSharing::CollectSome(Instant now) {
  std::size_t left = kEntriesPerSlice;
  bool full = false;
  while (!round_.empty() && left-- > 0 && !full) {
    const std::uint64_t hash = round_.back();
    SiteSums::Sum* const sum = sums_.Find(hash);
    const bool used = sum != nullptr && sum->used();
    if (used) full = !Tell(hash, *sum, draft_, now);
    if (full) break;
    round_.pop_back();
    used ? sums_.Keep(hash) : sums_.Forget(hash);
  }
  ChargeAssumed(now);
  full = full || (round_.empty() && words_.TellMembers(draft_, now));
  if ((full || round_.empty()) && !Push(draft_, ToPeers::Kind::kHits, to_, now)) return true;
  if (full || !round_.empty()) return true;
  if (!outlet_.Push(ToPeers::Kind::kPeriodEnd, to_, now)) return true;
  from_ = to_;
  collecting_ = false;
  return false;
}

// Tells tags early of which other sites foretell something else. Whether there is more to do.
bool SiteSharing::Judge(Instant now) {
  if (!Push(urgent_, ToPeers::Kind::kUrgent, now, now)) return true;
  judge_at_ = now + kJudgeEvery;
  for (const std::uint64_t hash : sums_.TakeChanged()) {
    SiteSums::Sum* const sum = sums_.Find(hash);
    if (sum == nullptr) continue;
    sum->changed = false;
    if (!IsNews(hash, *sum, now) || !Tell(hash, *sum, urgent_, now)) continue;
    ++counts_.told_early;
    if (assumed_.size() >= kEntriesPerSlice) ChargeAssumed(now);
  }
  words_.TellPenalties(urgent_, now);
  ChargeAssumed(now);
  return !Push(urgent_, ToPeers::Kind::kUrgent, now, now);
}

// While a site is not heard, what is assumed of places follows those that are taken here.
bool SiteSharing::IsNews(std::uint64_t hash, SiteSums::Sum& sum, Instant now) {
  bool news = false;
  LookAt(hash, sum, now, [&](const Look& look) {
    const bool apart = sum.placed && IsApart(look.limit);
    news = Strays(sum, look, now) || apart || words_.IsPressing(hash, sum, look.limit, now);
  });
  return news;
}

bool SiteSharing::Strays(SiteSums::Sum& sum, const Look& look, Instant now) {
  if (!look.foretold || !OwnsHere(ways_.core(), sum.said())) return false;
  if (sum.budget_at != Instant()) sum.budget.Step(look.pace, Seconds(now - sum.budget_at));
  sum.budget_at = now;
  const Tokens threshold = sum.budget.Threshold(look.pace);
  const Tokens foretold = sum.demand * (look.foretold->earned - sum.earned);
  const bool strays = std::abs(static_cast<double>(sum.hits) - foretold) >= threshold ||
                      std::abs(look.foretold->demand_here - sum.demand) * kMovedWithin >= threshold;
  if (strays) sum.budget.Sent(look.pace, true);
  return strays;
}

// Puts the tag into the draft; false: there is no room.
bool SiteSharing::Tell(std::uint64_t hash, SiteSums::Sum& sum, Draft& draft, Instant now) {
  bool room = true;
  const bool limited = LookAt(hash, sum, now, [&](const Look& look) {
    const double demand = look.foretold && OwnsHere(ways_.core(), sum.said()) ? look.foretold->demand_here : 0;
    const std::uint64_t hits = std::min(sum.hits, kHitsMax);
    if (sum.placed && look.limit.keeps_part && look.limit.in_flight > 0) AssumePlaces(hash, sum, look.limit, now);
    room = words_.Tell(hash, sum, look.limit, draft, now);
    if (!room) return;
    if (hits == 0 && demand == 0 && sum.demand == 0) return;
    Besides said;
    if (demand != 0 || sum.demand != 0 || hits == 0) said.demand = Thousandths(demand, kDemandMax);
    room = draft.entries.Add(sum.said(), hits, 0, said);
    if (!room) return;
    draft.began.push_back(hits != 0 ? sum.began : ToTicks(now));
    ++counts_.told;
    sums_.Told(sum, hits);
    sum.demand = demand;
    sum.earned = look.foretold ? look.foretold->earned : 0;
    if (look.limit.keeps_part && (!all_heard_ || sum.assumed)) Assume(look, sum, hits, demand);
  });
  if (!limited) sums_.Drop(sum, sum.hits), sum.demand = 0;
  return room;
}

bool SiteSharing::Push(Draft& draft, ToPeers::Kind kind, Instant to, Instant now) {
  if (draft.entries.empty()) return true;
  if (!outlet_.HasRoom(now)) return false;
  ToPeers message;
  message.kind = kind;
  message.from = draft.Stamp(from_, to, kReachPeriods * options_.period);
  message.to = to;
  message.hosts = ways_.core().here;
  message.entries = std::move(draft.entries);
  draft.Clear();
  return outlet_.Push(message, now);
}

// ---- While a site is not heard ----

// With a part f of the limit, what this site serves is f of all that is served. Once all are heard, they ask for
// nothing beside what they say.
void SiteSharing::Assume(const Look& look, SiteSums::Sum& sum, std::uint64_t hits, double demand) {
  const double others = all_heard_ ? 0 : (1 - options_.part) / options_.part;
  sum.assumed = !all_heard_ && look.foretold;
  const double tokens = others * static_cast<double>(hits) + assumed_rest_;
  const double whole = std::floor(tokens);
  assumed_rest_ = tokens - whole;
  Besides said;
  if (look.foretold) said.demand = Thousandths(others * demand, kDemandMax);
  if (whole == 0 && !said.demand) return;
  assumed_.Add(sum.said(), static_cast<std::uint64_t>(whole), 0, said);
  counts_.assumed += static_cast<std::uint64_t>(whole);
}

// With a part f of the places too, the other sites have the rest.
void SiteSharing::AssumePlaces(std::uint64_t hash, const SiteSums::Sum& sum, const Limit& limit, Instant now) {
  const std::uint64_t places = all_heard_ ? 0 : words_.PlacesAssumed(hash, limit, options_.part, now);
  if (places != 0 || words_.PlacesAssumedBefore(hash, now) != 0) assumed_.Add(sum.said(), 0, 0, {.places = places});
}

void SiteSharing::ChargeAssumed(Instant now) {
  if (assumed_.empty()) return;
  if (!all_heard_) {
    if (now - assumed_until_ > kReachPeriods * options_.period) assumed_from_ = from_;
    assumed_until_ = now;
  }
  Speaker others(static_cast<std::uint32_t>(options_.others));
  others.abroad = true;
  others.hosts = ways_.core().abroad;
  others.period = options_.period;
  debits_.Debit(assumed_, 0, assumed_.size(), std::min(from_, now), now, now, others);
  Moved(assumed_, now);
  assumed_.Clear();
}

// ---- Over a restart ----

SiteSharing::Kept SiteSharing::Keep() const {
  Kept kept{from_};
  sums_.ForEach([&](const SiteSums::Sum& sum) {
    if (sum.hits != 0) kept.sums.push_back(sum);
  });
  return kept;
}

void SiteSharing::Resume(const Kept& kept, Instant now) {
  from_ = std::min(kept.from, now);
  for (const SiteSums::Sum& sum : kept.sums) {
    const std::size_t least = sum.is_digest ? kDigestBytes : 1;
    if (sum.tag.size() < least || sum.tag.size() > kTagBytesMax) continue;
    sums_.Add(table_.Hash(TableTag(sum.said())), sum.said(), std::min(sum.hits, kHitsMax), sum.began);
    sums_.Recovered(sum.hits);
  }
}

SiteCounts SiteSharing::counts() const {
  SiteCounts counts = counts_;
  counts.tags = sums_.size();
  counts.crowded = sums_.crowded();
  counts.untold = sums_.lost();
  return counts;
}

}    // namespace dthrottle
