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
  Lane& lane = *lanes_[lane_index];
  lane.Tick(queries.size(), now);
  const auto tag_of = [&](std::size_t i) -> const Tag& { return queries[i].tag; };
  table_->ForEach(queries.size(), false, tag_of, [&](std::size_t i, const Table::Probe& probe) {
    verdicts[i] = Decide(queries[i], probe, lane, prng, now, standings.empty() ? nullptr : &standings[i]);
    if (lane.Sampled()) lane.Sample(queries[i].tag, probe.hash, verdicts[i] == Verdict::kServe, prng, now);
  });
}

// What the limit refuses.
inline Verdict Limiter::Refuse(const Query& query, std::uint64_t hash, const Limit& limit, RuleCounters& counters) {
  if (limit.shared) certificate_.Refused(hash, query.cost);
  if (limit.mode == Mode::kShadow) {
    counters.shadowed.Add();
    return Verdict::kServe;
  }
  counters.throttled.Add();
  return Verdict::kThrottle;
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
  Shape shape = limit.shape;
  PartTable::Entry* entry = nullptr;
  if (limit.divided) [[unlikely]] {
    entry = EntryOf(query.tag, limit);
    if (entry != nullptr) entry->CountArrivals(query.cost);
    if (entry != nullptr && !entry->named) lane.Note(query.tag, probe.hash, index);
    shape = ShapeHere(limit, entry, now);
    // What was spent while the part was so small that a token took longer than the depth.
    if (slot != nullptr) slot->bucket = slot->bucket.WithoutDebt(shape, now);
  }
  Bucket fresh;
  Bucket& bucket = slot == nullptr ? fresh : slot->bucket;
  Watch* const watch = shared && Watched(limit) ? watches_->Find(probe.hash) : nullptr;
  if (watch != nullptr && !Foresees(*watch, bucket, limit, query.cost, lane, now)) {
    watch->forecast.Missed(query.cost);
    if (slot != nullptr) shard.Refused(slot);
    if (standing != nullptr) *standing = {shape, bucket};
    return Refuse(query, probe.hash, limit, counters);
  }
  const bool within = shared && slot != nullptr ? bucket.Take(shape, query.cost, now, shard.waste(slot), window_)
                                                : bucket.Take(shape, query.cost, now);
  if (standing != nullptr) *standing = {shape, bucket};
  if (within) {
    if (bucket.IsNearLimit(shape, now)) counters.near_limit.Add();
    if (slot == nullptr && !fresh.IsFull(now)) slot = shard.Insert(query.tag, fresh, index, Source::kQuery, now);
    if (shared && slot != nullptr) {
      shard.AddUnreported(slot, query.cost);
      if (watch != nullptr) {
        if (watch->forecast.Took(query.cost) && !watch->noted) Note(*watch);
      } else if (Watched(limit)) [[unlikely]] {
        WatchNew(query, probe.hash, *slot, limit, now);
      }
    } else if (watch != nullptr) [[unlikely]] {
      watch->forecast.Missed(query.cost);
    }
    counters.served.Add();
    return Verdict::kServe;
  }
  if (slot != nullptr) shard.Refused(slot);
  if (watch != nullptr) watch->forecast.Missed(query.cost);
  if (limit.divided && entry == nullptr) lane.Note(query.tag, probe.hash, index);
  return Refuse(query, probe.hash, limit, counters);
}

std::optional<LimitIndex> Limiter::FindLimit(const Query& query) const {
  return query.over_long != nullptr ? rules_->Find(*query.over_long) : rules_->Find(query.tag.bytes);
}

}    // namespace dthrottle
