#include "share/sites/site_words.h"

#include <algorithm>

#include "base/siphash.h"
#include "share/debit/ownership.h"
#include "share/owners/places_taken.h"
#include "share/said_tag.h"

namespace dthrottle {
namespace {

constexpr std::size_t kQuotasAgain = 64;     // quotas that are gone through each period
constexpr std::size_t kPlacesAgain = 256;    // tags of which places are taken, in a slice of work
// A flood of tags that are refused once each costs other sites nothing.
constexpr std::uint64_t kRefusalsLeast = 2;

// A name of any length as a counter that no host has.
std::uint64_t CounterOf(std::string_view site) {
  return SipHash<2, 4>({}, site) % (kHostCounters - 1) + 1;
}

// Calls use(said) with the tag that `known` knows by its hash, as hosts say it, if this host owns it.
template <class Known, class Use>
void IfOwned(std::uint64_t hash, const Known& known, const LimiterCore& core, Instant now, Use&& use) {
  Table::Shard shard(*core.table, hash);
  Entries said;
  const auto tag = known.TagOf(hash);
  const auto index = tag ? LimitOfOwned(core, shard, *tag, now) : std::nullopt;
  if (index) AddSaidTag(*core.rules, *tag, *index, 0, {.demand = 0}, said);
  if (!said.empty()) use(said.tag(said.list().front()));
}

}    // namespace

SiteWords::SiteWords(Ways& ways, SiteSums& sums, std::string_view site, std::size_t others, SiteCounts& counts)
    : ways_(ways), sums_(sums), counter_(CounterOf(site)), others_(others), counts_(counts) {}

bool SiteWords::Add(const Tag& said, const Besides& besides, Draft& draft, Instant now) {
  if (!draft.entries.Add(said, 0, 0, besides)) return false;
  draft.began.push_back(ToTicks(now));
  ++counts_.told;
  return true;
}

void SiteWords::PeriodBegins(Instant now) {
  LimiterCore& core = ways_.core();
  if (const Quotas* const quotas = ways_.quotas()) {
    for (std::size_t n = 0; n < std::min(kQuotasAgain, quotas->places()); ++n) {
      const std::uint64_t hash = quotas->HashAt(quota_place_);
      quota_place_ = (quota_place_ + 1) % quotas->places();
      if (hash == 0) continue;
      IfOwned(hash, *quotas, core, now, [&](const Tag& said) { sums_.Counted(hash, said); });
    }
  }
  if (core.gauges == nullptr) return;
  core.gauges->ForEach(core.ShardLock(), [&](std::uint64_t hash) { reminded_.push_back(hash); });
}

bool SiteWords::RemindSome(Instant now) {
  const LimiterCore& core = ways_.core();
  for (std::size_t left = kPlacesAgain; left > 0 && !reminded_.empty(); --left) {
    const std::uint64_t hash = reminded_.back();
    reminded_.pop_back();
    IfOwned(hash, *core.gauges, core, now, [&](const Tag& said) { sums_.Placed(hash, said); });
  }
  return !reminded_.empty();
}

// ---- Of one tag ----

bool SiteWords::IsPressing(std::uint64_t hash, const SiteSums::Sum& sum, const Limit& limit, Instant now) const {
  if (sum.counted && ways_.HasQuota(limit)) {
    if (const auto word = ways_.quotas()->OfSite(hash, limit, counter_, now)) {
      const std::uint64_t told = sum.quota.period == word->period ? sum.quota.net() : 0;
      const std::uint64_t untold = word->net() - std::min(told, word->net());
      if (IsNews(untold, ways_.quotas()->Look(hash, limit, now).left())) return true;
    }
  }
  if (limit.penalizes && sum.refusals * 2 * (others_ + 1) >= ways_.core().rules->penalty(limit).after) return true;
  if (!sum.placed || limit.in_flight == 0) return false;
  const PlacesTaken taken = PlacesTakenOf(ways_.core(), hash, now);
  const std::uint32_t moved = std::max(taken.site, sum.places) - std::min(taken.site, sum.places);
  return IsNews(moved, limit.in_flight - std::min(taken.all(), limit.in_flight));
}

bool SiteWords::Tell(std::uint64_t hash, SiteSums::Sum& sum, const Limit& limit, Draft& draft, Instant now) {
  if (sum.counted) {
    const auto word = ways_.HasQuota(limit) ? ways_.quotas()->OfSite(hash, limit, counter_, now) : std::nullopt;
    if (word && !Add(sum.said(), {.quota = word}, draft, now)) return false;
    if (word) sum.quota = *word;
    sum.counted = false;
  }
  if (sum.refusals >= kRefusalsLeast && limit.penalizes) {
    if (!Add(sum.said(), {.refusals = sum.refusals}, draft, now)) return false;
    sum.refusals = 0;
  }
  if (sum.placed) {
    const std::uint32_t taken = limit.in_flight > 0 ? PlacesTakenOf(ways_.core(), hash, now).site : 0;
    if ((taken != 0 || sum.places != 0) && !Add(sum.said(), {.places = taken}, draft, now)) return false;
    sum.places = taken;
    sum.placed = false;
  }
  return true;
}

// ---- Of any tags ----

bool SiteWords::TellPenalties(Draft& draft, Instant now) {
  sums_.penalties().TellSome([&](const Tag& said, Instant until) {
    return Add(said, {.penalty = PenaltyMilliseconds(until - now)}, draft, now);
  });
  return sums_.penalties().any();
}

bool SiteWords::TellMembers(Draft& draft, Instant now) {
  LimiterCore& core = ways_.core();
  if (core.among == nullptr) return false;
  const BesideHits& beside = ways_.Get<Debits>().beside();
  const std::size_t before = draft.entries.size();
  const bool more = core.among->TellSitesSome(
      core.ShardLock(), now, [&](const Tag& tag, const MemberWord& word, Table::Shard& shard) {
        return !OwnsHere(core, tag) || beside.Add(tag, {.member = word}, shard, now, draft);
      });
  counts_.told += draft.entries.size() - before;
  return more;
}

}    // namespace dthrottle
