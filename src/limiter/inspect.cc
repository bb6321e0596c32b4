#include "limiter/inspect.h"

#include <algorithm>
#include <functional>

#include "base/siphash.h"
#include "limiter/limit_of.h"
#include "limiter/recall.h"
#include "limiter/limiter.h"
#include "limiter/under_limit.h"
#include "share/derived_tag.h"
#include "share/inspection.h"
#include "share/ways.h"

namespace dthrottle {

Inspection Inspect(Limiter& limiter, const Query& query, Instant now) {
  Ways& ways = limiter.ways();
  LimiterCore& core = ways.core();
  const std::uint64_t hash = core.table->Hash(query.tag);
  Table::Shard shard(*core.table, hash);
  const Slot* slot = shard.Find(query.tag, now);
  Inspection seen;
  if (slot != nullptr) {
    seen.limit = LimitIndex{slot->limit};
    seen.recorded = true;
    seen.bucket = slot->bucket;
  } else {
    seen.limit = LimitOf(*core.rules, query);
  }
  if (!seen.limit.has_value()) return seen;
  const Limit& limit = core.limit(*seen.limit);
  seen.lent = Loans::Out(core.loans.Of(hash));
  if (limit.in_flight != 0) {
    seen.places = {core.in_flight->taken(hash), PlacesHere(ways, query.tag, hash, limit, now)};
  }
  if (limit.among != Among::kFirst) seen.among = core.among->Of(hash, now);
  seen.penalty = PenaltyLeft(core, limit, hash, now);
  if (ways.HasQuota(limit)) seen.quota = ways.quotas()->Look(hash, limit, now);
  const TagAt at{query.tag, hash, limit, slot};
  seen.shape = ways.With(limit, [&](auto& way) { return way.ShapeOf(query.tag, limit, now); });
  ways.With(limit, [&](auto& way) { return way.Inspect(at, seen, now), true; });
  return seen;
}

namespace {

bool ForgiveHere(Limiter& limiter, const Query& query, std::uint64_t hash, Instant now) {
  LimiterCore& core = limiter.ways().core();
  Table::Shard shard(*core.table, hash);
  bool had = core.penalties.Lift(hash, now);
  Slot* slot = shard.Find(query.tag, now);
  if (const auto index = LimitOf(*core.rules, query, slot); index.has_value()) {
    const Limit& limit = core.limit(*index);
    if (!had && limit.penalizes) {
      core.penalties.TellLifted(query.tag, hash, core.rules->penalty(limit), now);
    }
    if (limiter.ways().HasQuota(limit)) had = limiter.ways().quotas()->Forgive(hash, limit, now) || had;
    Asked asked{query, hash, *index, limit, shard, slot, 0, now, limit.shape};
    if (core.loans.any()) RecallLoans(limiter.ways(), asked, core.tally.lane(0));
    for (Loan* loan = core.loans.Of(hash); loan != nullptr; loan = loan->next) loan->Say(now, now);
    slot = asked.slot;
  }
  if (slot == nullptr) return had;
  shard.Erase(slot);
  return true;
}

}    // namespace

bool Forgive(Limiter& limiter, const Query& query, Instant now) {
  const LimiterCore& core = limiter.ways().core();
  const std::uint64_t hash = core.table->Hash(query.tag);
  const bool had = ForgiveHere(limiter, query, hash, now);
  if (core.observed.sample().Has(hash)) {
    if (const auto observer = core.observed.observer()) observer->Forgiven(query, now);
  }
  return had;
}

std::vector<PenalizedTag> Penalized(Limiter& limiter, Instant now) {
  LimiterCore& core = limiter.ways().core();
  std::vector<PenalizedTag> tags;
  core.penalties.ForEach(core.ShardLock(), now, [&](const PenaltyAt& its) {
    if (its.until <= now) return;
    const Tag tag = its.tag.tag();
    tags.push_back({std::string(tag.bytes), tag.is_digest, its.until - now, its.length, its.heard});
  });
  std::ranges::sort(tags, std::greater(), &PenalizedTag::left);
  return tags;
}

std::vector<std::string> ChargedWith(const Limiter& limiter, const Query& query, Instant now) {
  const LimiterCore& core = limiter.ways().core();
  std::vector<std::string> tags;
  if (query.tag.is_digest && query.over_long == nullptr) return tags;
  const std::uint64_t hash = core.table->Hash(query.tag);
  Table::Shard shard(*core.table, hash);
  const Slot* const slot = shard.Find(query.tag, now);
  const auto index = LimitOf(*core.rules, query, slot);
  if (!index.has_value()) return tags;
  core.rules->ForEachDerived(*index, TextOf(query), [&](std::string_view tag) { tags.emplace_back(tag); });
  return tags;
}

std::vector<std::string> PlacesWith(const Limiter& limiter, const Query& query, Instant now) {
  const LimiterCore& core = limiter.ways().core();
  if (core.in_flight == nullptr) return {};
  std::vector<std::string> tags = ChargedWith(limiter, query, now);
  std::erase_if(tags, [&](const std::string& tag) {
    const auto limit = LimitOf(*core.rules, DerivedTag(tag, core).query());
    return !limit || core.limit(*limit).in_flight == 0;
  });
  return tags;
}

std::uint16_t MarkOf(std::span<const std::string> charged) {
  if (charged.empty()) return 0;
  std::uint64_t hash = 0;
  for (const std::string& tag : charged) hash = SipHash<1, 3>({hash, tag.size()}, tag);
  return static_cast<std::uint16_t>(hash | 1);
}

std::vector<Payment> PaymentsOf(const Limiter& limiter, std::span<const Query> queries, Instant now) {
  std::vector<Payment> payments;
  payments.reserve(queries.size());
  for (const Query& query : queries) payments.push_back({query, now, MarkOf(ChargedWith(limiter, query, now))});
  return payments;
}

LimiterCounts CountsOf(const Limiter& limiter) {
  const LimiterCore& core = limiter.ways().core();
  LimiterCounts counts{.penalties = core.penalties.counts()};
  if (const Quotas* const quotas = limiter.ways().quotas()) counts.quotas = quotas->counts();
  if (core.among != nullptr) counts.among = core.among->counts();
  if (const OwnLimits* const own = core.rules->own()) {
    counts.own_limits = own->used(), counts.own_limits_crowded = own->crowded();
  }
  if (core.in_flight != nullptr) {
    counts.in_flight = core.in_flight->counts();
    counts.in_flight.crowded += core.gauges->crowded();
    counts.in_flight.heard = core.gauges->heard();
  }
  return counts;
}

}    // namespace dthrottle
