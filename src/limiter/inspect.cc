// Looking inside.
#include "bucket/table_lookup.h"
#include "limiter/limiter.h"

namespace dthrottle {

Inspection Limiter::Inspect(const Query& query, Instant now) {
  Table::Shard shard(*table_, table_->Hash(query.tag));
  const Slot* slot = shard.Find(query.tag, now);
  Inspection seen;
  if (slot != nullptr) {
    seen.limit = LimitIndex{slot->limit};
    seen.recorded = true;
    seen.bucket = slot->bucket;
  } else {
    seen.limit = FindLimit(query);
  }
  if (!seen.limit.has_value()) return seen;
  const Limit& limit = rules_->limit(*seen.limit);
  const PartTable::Entry* const entry = EntryOf(query.tag, limit);
  seen.shape = ShapeHere(limit, entry, now);
  if (limit.divided) {
    seen.part = parts_.PartNow(entry, now);
    seen.bucket = seen.bucket.WithoutDebt(seen.shape, now);
  }
  const std::uint64_t hash = table_->Hash(query.tag);
  if (const TagAccuracy* accuracy = certificate_.Find(hash)) seen.accuracy = *accuracy;
  if (Watch* watch = Watched(limit) ? watches_->Find(hash) : nullptr) {
    seen.watched = true;
    if (limit.forecast) {
      StepWatch(*watch, seen.bucket, limit, now);
      const Forecast& f = watch->forecast;
      seen.foretold = {f.level(), f.share(), f.demand(), f.peers_demand(), f.held()};
    }
  }
  return seen;
}

bool Limiter::Forgive(const Query& query, Instant now) {
  Table::Shard shard(*table_, table_->Hash(query.tag));
  Slot* slot = shard.Find(query.tag, now);
  if (slot == nullptr) return false;
  shard.Erase(slot);
  return true;
}

Standing Limiter::GiveBack(const Query& query, Instant now) {
  Table::Shard shard(*table_, table_->Hash(query.tag));
  Slot* slot = shard.Find(query.tag, now);
  const auto index = slot != nullptr ? std::optional(LimitIndex{slot->limit}) : FindLimit(query);
  if (!index.has_value() || rules_->limit(*index).mode == Mode::kOff) return {};
  const Limit& limit = rules_->limit(*index);
  const Shape shape = ShapeHere(limit, EntryOf(query.tag, limit), now);
  if (slot == nullptr) return {shape, Bucket()};
  slot->bucket.Credit(shape, query.cost);
  return {shape, slot->bucket};
}

RuleTotals Limiter::CounterTotals(std::size_t counter) const {
  RuleTotals sum;
  for (const auto& lane : lanes_) {
    const RuleCounters& counters = lane->counters(counter);
    sum += {counters.served.Read(), counters.throttled.Read(), counters.shadowed.Read(), counters.near_limit.Read(),
            counters.shed.Read()};
  }
  return sum;
}

RuleTotals Limiter::Totals(std::size_t rule) const {
  if (rule >= rules_->rules().size()) return CounterTotals(rule);
  const std::size_t counter = counter_of_rule_[rule];
  RuleTotals sum = CounterTotals(counter);
  return sum -= counter_bases_[counter];
}

DebitTotals Limiter::Debits(std::size_t rule) const {
  return debits_[rule < rules_->rules().size() ? counter_of_rule_[rule] : rule];
}

Retention::Totals Limiter::Forgotten(std::size_t rule) const {
  return retention_.totals(rule < rules_->rules().size() ? counter_of_rule_[rule] : rule);
}

RuleTotals Limiter::GrandTotals() const {
  RuleTotals sum = CounterTotals(Lane::kNoRule);
  for (std::size_t i = 0; i < counter_names_.size(); ++i) sum += CounterTotals(i);
  return sum;
}

}    // namespace dthrottle
