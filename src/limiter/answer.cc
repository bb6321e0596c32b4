// The query path.
#include <algorithm>

#include "base/check.h"
#include "limiter/limiter.h"

namespace dthrottle {

// Memory is the cost of a decision, so a batch asks for all its memory first: directory lines while hashing, cells
// once the directories are there, and only then one decision after the other.
void Limiter::Answer(std::span<const Query> queries, std::span<Verdict> verdicts, std::size_t lane_index, Prng& prng,
                     Instant now) {
  DT_CHECK(verdicts.size() == queries.size());
  constexpr std::size_t kBatch = 64;
  std::array<std::uint64_t, kBatch> hashes;
  Lane& lane = *lanes_[lane_index];
  lane.Tick(queries.size(), now);
  for (std::size_t done = 0; done < queries.size(); done += kBatch) {
    const std::size_t n = std::min(kBatch, queries.size() - done);
    for (std::size_t i = 0; i < n; ++i) {
      hashes[i] = table_->Hash(queries[done + i].tag);
      table_->Near(hashes[i]);
    }
    for (std::size_t i = 0; i < n; ++i) table_->Nearer(hashes[i]);
    for (std::size_t i = 0; i < n; ++i) {
      const Query& query = queries[done + i];
      const Verdict verdict = Decide(query, hashes[i], lane, now);
      verdicts[done + i] = verdict;
      if (lane.Sampled()) lane.Sample(query.tag, hashes[i], verdict == Verdict::kServe, prng, now);
    }
  }
}

Verdict Limiter::Decide(const Query& query, std::uint64_t hash, Lane& lane, Instant now) {
  Table::Shard shard(*table_, hash);
  Slot* slot = shard.Find(query.tag, now);
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
  Bucket fresh;
  Bucket& bucket = slot != nullptr ? slot->bucket : fresh;
  if (limit.mode == Mode::kOff || bucket.Take(limit.shape, query.cost, now)) {
    if (slot == nullptr && !fresh.IsFull(now)) shard.Insert(query.tag, fresh, index, now);
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

}  // namespace dthrottle
