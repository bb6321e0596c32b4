#include "share/sites/site_sharing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "share/said_tag.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kJudgeEvery = 20ms;    // tags that were named are looked at together
constexpr std::size_t kUntoldWord = 6;    // of those beside the table, behind bus/account.h

}    // namespace

SiteSharing::SiteSharing(Ways& ways, ToPeersRing& to_sites, FromPeersRing& from_sites, const Options& options,
                         Prng& prng, Instant now)
    : ways_(ways),
      table_(*ways.core().table),
      period_(options.period),
      sums_(table_.words()[kUntoldWord], ways.Get<Debits>().account_to_sites()),
      words_(ways, sums_, options.name, options.others, counts_),
      apart_(ways, options.period, options.others, options.part, counts_),
      hearing_(ways, from_sites, apart_, sums_.penalties(), options.period, options.others, counts_),
      outlet_(to_sites),
      from_(now),
      to_(now),
      report_at_(now +
                 Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(options.period.count()))))) {
  ways_.core().site_sums = &sums_;
  ways_.Get<Debits>().ShareAbroad(period_);
}

SiteSharing::~SiteSharing() {
  ways_.core().site_sums = nullptr;
  ways_.core().abroad = 0;
  ways_.core().sites.clear();
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
  more = hearing_.Merge(now) || more;
  return more && !outlet_.retry_at();
}

// ---- What other sites are told ----

void SiteSharing::Begin(Instant now) {
  collecting_ = true;
  to_ = now;
  words_.PeriodBegins(now);
  round_ = sums_.TakeAll();
  report_at_ += period_ * ((now - report_at_) / period_ + 1);
}

// Whether there is more to do.
bool SiteSharing::CollectSome(Instant now) {
  std::size_t left = SiteHearing::kEntriesPerSlice;
  bool full = false;
  const bool reminds = words_.RemindSome(now);
  while (!round_.empty() && left-- > 0 && !full) {
    const std::uint64_t hash = round_.back();
    SiteSums::Sum* const sum = sums_.Find(hash);
    const bool used = sum != nullptr && sum->used();
    if (used) full = !Tell(hash, *sum, draft_, now);
    if (full) break;
    if (used) sum->refusals = 0;    // too few to be told
    round_.pop_back();
    used ? sums_.Keep(hash) : sums_.Forget(hash);
  }
  apart_.Charge(from_, now);
  full = full || (round_.empty() && words_.TellMembers(draft_, now));
  if ((full || round_.empty()) && !Push(draft_, ToPeers::Kind::kHits, to_, now)) return true;
  if (full || reminds || !round_.empty()) return true;
  ToPeers end = Message(ToPeers::Kind::kPeriodEnd, to_);
  if (!outlet_.Push(end, now)) return true;
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
    if (apart_.full()) apart_.Charge(from_, now);
  }
  words_.TellPenalties(urgent_, now);
  apart_.Charge(from_, now);
  return !Push(urgent_, ToPeers::Kind::kUrgent, now, now);
}

// While a site is not heard, what is assumed of places follows those that are taken here.
bool SiteSharing::IsNews(std::uint64_t hash, SiteSums::Sum& sum, Instant now) {
  bool news = false;
  LookAt(ways_, sum.said(), hash, kNobody, now, [&](const Look& look) {
    const bool apart = sum.placed && apart_.Keeps(look.limit);
    news = Strays(sum, look, now) || apart || words_.IsPressing(hash, sum, look.limit, now);
  });
  return news;
}

bool SiteSharing::Strays(SiteSums::Sum& sum, const Look& look, Instant now) {
  if (!look.foretold || !OwnsHere(ways_.core(), sum.said())) return false;
  Pace pace = look.pace;
  pace.period = Seconds(period_);
  if (sum.budget_at != Instant()) sum.budget.Step(pace, Seconds(now - sum.budget_at));
  sum.budget_at = now;
  const Tokens threshold = sum.budget.Threshold(pace);
  const Tokens foretold = sum.demand * (look.foretold->earned - sum.earned);
  const bool strays = std::abs(static_cast<double>(sum.hits) - foretold) >= threshold ||
                      std::abs(look.foretold->demand_here - sum.demand) * kMovedWithin >= threshold;
  if (strays) sum.budget.Sent(pace, true);
  return strays;
}

// Puts the tag into the draft; false: there is no room.
bool SiteSharing::Tell(std::uint64_t hash, SiteSums::Sum& sum, Draft& draft, Instant now) {
  bool room = true;
  const bool limited = LookAt(ways_, sum.said(), hash, kNobody, now, [&](const Look& look) {
    const double demand = look.foretold && OwnsHere(ways_.core(), sum.said()) ? look.foretold->demand_here : 0;
    const std::uint64_t hits = std::min(sum.hits, kHitsMax);
    const bool keeps_part = look.limit.keeps_part;
    if (sum.placed && keeps_part && look.limit.in_flight > 0) apart_.AssumePlaces(hash, sum, look.limit, now);
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
    if (keeps_part) apart_.Assume(sum, hits, look.foretold ? std::optional(demand) : std::nullopt);
  });
  if (!limited) sums_.Drop(sum, sum.hits), sum.demand = 0;
  return room;
}

// With what each report says of this site.
ToPeers SiteSharing::Message(ToPeers::Kind kind, Instant to) const {
  const LimiterCore& core = ways_.core();
  ToPeers message;
  message.kind = kind;
  message.to = to;
  message.hosts = core.here;
  if (core.ownership != nullptr) message.parts = core.ownership->parts();
  return message;
}

bool SiteSharing::Push(Draft& draft, ToPeers::Kind kind, Instant to, Instant now) {
  if (draft.entries.empty()) return true;
  if (!outlet_.HasRoom(now)) return false;
  ToPeers message = Message(kind, to);
  message.from = draft.Stamp(from_, to, kReachPeriods * period_);
  message.entries = std::move(draft.entries);
  draft.Clear();
  return outlet_.Push(message, now);
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
