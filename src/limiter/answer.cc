// The query path.
#include <algorithm>

#include "base/check.h"
#include "bucket/table_lookup.h"
#include "limiter/limiter.h"

namespace dthrottle {

// Memory is the cost of a decision, so nobody waits for it: while one query is decided, the cells of those behind it
// are on their way, and the directory lines of those behind them.
void Limiter::Answer(std::span<const Query> queries, std::span<Verdict> verdicts, std::size_t lane_index, Prng& prng,
                     Instant now, std::span<Standing> standings) {
  DT_CHECK(verdicts.size() == queries.size() && (standings.empty() || standings.size() == queries.size()));
  constexpr std::size_t kAheadMax = 32, kRing = 128;
  static_assert(kRing > 2 * kAheadMax);
  std::array<Table::Probe, kRing> probes;
  Lane& lane = *lanes_[lane_index];
  lane.Tick(queries.size(), now);
  const std::size_t n = queries.size(), ahead = std::min(kAheadMax, n / 2);
  for (std::size_t i = 0; i < n + 2 * ahead; ++i) {
    if (i < n) probes[i % kRing] = table_->Aim(queries[i].tag);
    if (i >= ahead && i < n + ahead) table_->Approach(probes[(i - ahead) % kRing], false);
    if (i >= 2 * ahead) {
      const std::size_t k = i - 2 * ahead;
      const Table::Probe& probe = probes[k % kRing];
      verdicts[k] = Decide(queries[k], probe, lane, prng, now, standings.empty() ? nullptr : &standings[k]);
      if (lane.Sampled()) lane.Sample(queries[k].tag, probe.hash, verdicts[k] == Verdict::kServe, prng, now);
    }
  }
}

inline Verdict Limiter::Decide(const Query& query, const Table::Probe& probe, Lane& lane, Prng& prng, Instant now,
                               Standing* standing) {
  Table::Shard shard(*table_, probe.hash);
  Slot* slot = shard.Find(query.tag, probe, now);
  LimitIndex index;
  if (slot != nullptr) {
    index = slot->limit;
  } else if (const auto found = FindLimit(query)) {
    index = *found;
  } else {
    lane.counters_[Lane::kUnmatched].served.Add();
    return Verdict::kServe;
  }

  const Limit& limit = rules_->limit(index);
  RuleCounters& counters = lane.counters_[counter_of_rule_[limit.rule]];
  if (limit.mode == Mode::kOff) {
    counters.served.Add();
    return Verdict::kServe;
  }
  // Before the bucket is asked, so that a query that both would refuse counts as shed: the host comes first.
  if (shedding() && Sheds(rejection_probability(limit.shed_priority), prng)) [[unlikely]] {
    if (limit.mode == Mode::kShadow) {
      counters.shadowed.Add();
      return Verdict::kServe;
    }
    counters.shed.Add();
    return Verdict::kShed;
  }
  const bool shared = limit.shared && window_ != 0;
  Bucket fresh;
  const bool within = slot == nullptr ? fresh.Take(limit.shape, query.cost, now)
                      : shared        ? slot->bucket.Take(limit.shape, query.cost, now, shard.waste(slot), window_)
                                      : slot->bucket.Take(limit.shape, query.cost, now);
  if (standing != nullptr) *standing = {limit.shape, slot == nullptr ? fresh : slot->bucket};
  if (within) {
    if ((slot == nullptr ? fresh : slot->bucket).IsNearLimit(limit.shape, now)) counters.near_limit.Add();
    if (slot == nullptr && !fresh.IsFull(now)) slot = shard.Insert(query.tag, fresh, index, now);
    if (shared && slot != nullptr) shard.AddUnreported(slot, query.cost);
    counters.served.Add();
    return Verdict::kServe;
  }
  if (limit.mode == Mode::kShadow) {
    counters.shadowed.Add();
    return Verdict::kServe;
  }
  counters.throttled.Add();
  return Verdict::kThrottle;
}

std::optional<LimitIndex> Limiter::FindLimit(const Query& query) const {
  return query.over_long != nullptr ? rules_->Find(*query.over_long) : rules_->Find(query.tag.bytes);
}

}    // namespace dthrottle
