// Looking inside, and changing single buckets.
#include <algorithm>
#include <functional>

#include "limiter/lending.h"
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "limiter/under_limit.h"
#include "share/inspection.h"
#include "share/ways.h"

namespace dthrottle {

Inspection Limiter::Inspect(const Query& query, Instant now) {
  LimiterCore& core = *core_;
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
    seen.places = {core.in_flight->taken(hash), PlacesHere(*ways_, hash, limit, now)};
  }
  if (limit.among != Among::kFirst) seen.among = core.among->Of(hash, now);
  seen.penalty = PenaltyLeft(core, limit, hash, now);
  if (core.HasQuota(limit)) seen.quota = core.quotas->Look(hash, limit, now);
  const TagAt at{query.tag, hash, limit, slot};
  seen.shape = ways_->With(limit, [&](auto& way) { return way.ShapeOf(query.tag, limit, now); });
  ways_->With(limit, [&](auto& way) { return way.Inspect(at, seen, now), true; });
  return seen;
}

bool Limiter::Forgive(const Query& query, Instant now) {
  const std::uint64_t hash = core_->table->Hash(query.tag);
  Table::Shard shard(*core_->table, hash);
  bool had = core_->penalties.Lift(hash, now);
  Slot* slot = shard.Find(query.tag, now);
  if (const auto index = LimitOf(*core_->rules, query, slot); index.has_value()) {
    const Limit& limit = core_->limit(*index);
    if (core_->HasQuota(limit)) had = core_->quotas->Forgive(hash, limit, now) || had;
    Asked asked{query, hash, *index, limit, shard, slot, 0, now, limit.shape};
    if (core_->loans.any()) RecallLoans(*ways_, asked, core_->tally.lane(0));
    for (Loan* loan = core_->loans.Of(hash); loan != nullptr; loan = loan->next) loan->Say(now, now);
    slot = asked.slot;
  }
  if (slot == nullptr) return had;
  shard.Erase(slot);
  return true;
}

std::vector<PenalizedTag> Limiter::Penalized(Instant now) {
  std::vector<PenalizedTag> tags;
  core_->penalties.ForEach(core_->ShardLock(), now, [&](const PenaltyAt& its) {
    const Tag tag = its.tag.tag();
    tags.push_back({std::string(tag.bytes), tag.is_digest, its.until - now, its.length, its.heard});
  });
  std::ranges::sort(tags, std::greater(), &PenalizedTag::left);
  return tags;
}

void Limiter::Penalize(const Query& query, Instant until, Instant now) {
  LimiterCore& core = *core_;
  const std::uint64_t hash = core.table->Hash(query.tag);
  Table::Shard shard(*core.table, hash);
  const Slot* const slot = shard.Find(query.tag, now);
  if (slot == nullptr && query.tag.is_digest && query.over_long == nullptr) return;
  const auto index = LimitOf(*core.rules, query, slot);
  if (!index.has_value() || !core.limit(*index).penalizes) return;
  core.penalties.Hear(query.tag, hash, core.rules->penalty(core.limit(*index)), until, now);
}

PenaltyCounts Limiter::penalties() const {
  return core_->penalties.counts();
}

std::vector<std::string> Limiter::ChargedWith(const Query& query, Instant now) const {
  std::vector<std::string> tags;
  if (query.tag.is_digest && query.over_long == nullptr) return tags;
  const std::uint64_t hash = core_->table->Hash(query.tag);
  Table::Shard shard(*core_->table, hash);
  const Slot* const slot = shard.Find(query.tag, now);
  const auto index = LimitOf(*core_->rules, query, slot);
  if (!index.has_value()) return tags;
  core_->rules->ForEachDerived(*index, TextOf(query), [&](std::string_view tag) { tags.emplace_back(tag); });
  return tags;
}

Standing Limiter::Settle(const Query& paid, Cost actual, Instant now) {
  if (core_->observed.sample().Has(core_->table->Hash(paid.tag))) {
    if (const auto observer = core_->observed.observer()) observer->Settled(paid, actual, now);
  }
  for (const std::string& tag : ChargedWith(paid, now)) SettleOne({{tag, false}, paid.cost}, actual, now);
  return SettleOne(paid, actual, now);
}

Standing Limiter::SettleOne(const Query& paid, Cost actual, Instant now) {
  LimiterCore& core = *core_;
  const std::uint64_t hash = core.table->Hash(paid.tag);
  Table::Shard shard(*core.table, hash);
  Slot* const slot = shard.Find(paid.tag, now);
  if (slot == nullptr && paid.tag.is_digest && paid.over_long == nullptr) return {};
  const auto index = LimitOf(*core.rules, paid, slot);
  if (!index.has_value() || core.limit(*index).mode == Mode::kOff) return {};
  const Limit& limit = core.limit(*index);
  const Shape shape = ways_->With(limit, [&](auto& way) { return way.ShapeOf(paid.tag, limit, now); });
  Asked asked{paid, hash, *index, limit, shard, slot, 0, now, shape};
  if (core.HasQuota(limit)) {
    actual > paid.cost ? (void)core.quotas->Take(paid.tag, hash, limit, actual - paid.cost, now)
                       : core.quotas->GiveBack(hash, limit, paid.cost - actual, now);
  }
  if (actual > paid.cost) {
    Charge(asked, actual - paid.cost);
  } else if (slot != nullptr) {
    slot->bucket.Credit(shape, paid.cost - actual);
    if (limit.shared && core.window != 0) shard.TakeBack(slot, paid.cost - actual);
  }
  return {shape, asked.bucket(), *index};
}

void Limiter::Charge(Asked& asked, Cost tokens) {
  const LimiterCore& core = *core_;
  Waste unrecorded;
  Waste& waste = asked.slot != nullptr ? asked.shard.waste(asked.slot) : unrecorded;
  asked.bucket().Debit(asked.shape, tokens, asked.now, ways_->Get<Debits>().MaxDebt(asked.limit), asked.now, waste,
                       core.window);
  asked.Keep();
  ways_->With(asked.limit, [&](auto& way) { way.Charged(asked); });
  if (asked.limit.shared && core.window != 0 && asked.slot != nullptr) asked.shard.AddUnreported(asked.slot, tokens);
}

}    // namespace dthrottle
