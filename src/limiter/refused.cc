// Refusals that somebody else gives in the limiter's stead, for as long as it has said that it would.

#include "limiter/lending.h"
#include "limiter/limit_of.h"
#include "limiter/recall.h"
#include "limiter/under_limit.h"
#include "share/ways.h"

namespace dthrottle {

// Only the bucket and a penalty say until when. A penalty that is not in force yet begins by refusals that are asked
// for, and a tag that others are charged with is refused by any of them.
Instant RefusedUntil(Ways& ways, const Query& query, std::uint64_t hash, const Limit& limit, const Slot* slot,
                     Instant now) {
  const LimiterCore& core = ways.core();
  if (limit.mode != Mode::kEnforce || limit.derives) return now;
  if (limit.penalizes) return now + PenaltyLeft(core, limit, hash, now);
  Looked looked{query, hash, limit, slot, now, limit.shape, slot != nullptr ? slot->bucket : Bucket()};
  if (ways.HasQuota(limit)) {
    const QuotaStanding quota = ways.quotas()->Look(hash, limit, now);
    if (query.cost > quota.left()) return query.cost > quota.amount ? now : quota.ends;
  }
  if (ways.Would(looked) || !looked.shape.Holds(query.cost)) return now;
  return looked.bucket.ServesAt(looked.shape, query.cost, now);
}

Instant Lending::RefusedUntil(const Query& query, Instant now) const {
  Ways& ways = limiter_.ways();
  LimiterCore& core = ways.core();
  const Table::Probe probe = core.table->Aim(query.tag);
  Table::Shard shard(*core.table, probe.hash);
  const Slot* const slot = shard.Find(query.tag, probe, now);
  const auto index = LimitOf(*core.rules, query, slot);
  return index.has_value() ? dthrottle::RefusedUntil(ways, query, probe.hash, core.limit(*index), slot, now) : now;
}

void Lending::CountRefused(const Query& query, Cost times, LaneUse use, Instant now) {
  Ways& ways = limiter_.ways();
  LimiterCore& core = ways.core();
  Lane& lane = core.tally.lane(use.number);
  const Table::Probe probe = core.table->Aim(query.tag);
  Table::Shard shard(*core.table, probe.hash);
  Slot* const slot = shard.Find(query.tag, probe, now);
  const auto index = LimitOf(*core.rules, query, slot);
  const bool enforced = index.has_value() && core.limit(*index).mode == Mode::kEnforce;
  const bool penalized = enforced && PenaltyLeft(core, core.limit(*index), probe.hash, now) != Duration::zero();
  const bool spent = enforced && !penalized && ways.HasQuota(core.limit(*index)) &&
                     IsSpent(ways, query, probe.hash, core.limit(*index), now);
  if (core.observed.sample().Has(probe.hash) && !spent) [[unlikely]] {
    if (const auto observer = core.observed.observer()) observer->Decided(query, false, times, use.number, now);
  }
  if (!enforced) return;
  const Limit& limit = core.limit(*index);
  RuleCounters& counters = lane.counters(core.tally.counter(limit.rule));
  counters.throttled.Add(times);
  if (penalized) {
    counters.penalized.Add(times);
  } else if (spent) {
    counters.over_quota.Add(times);
  } else {
    Query all = query;
    all.cost = times;
    Asked asked{all, probe.hash, *index, limit, shard, slot, lane.number(), now, limit.shape};
    ways.With(limit, [&](auto& way) { return way.Refuse(asked), true; });
  }
  lane.AddTimes(query.tag, probe.hash, false, times, now);
  if (lane.refusals().Due(now)) NoteRefusal(core, lane, use.front_end, query, Verdict::kThrottle, now);
}

}    // namespace dthrottle
