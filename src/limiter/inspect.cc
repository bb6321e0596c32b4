// Looking inside, and changing single buckets.
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
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
  const TagAt at{query.tag, hash, limit, slot};
  seen.shape = ways_->With(limit, [&](auto& way) { return way.ShapeOf(query.tag, limit, now); });
  ways_->With(limit, [&](auto& way) { return way.Inspect(at, seen, now), true; });
  return seen;
}

bool Limiter::Forgive(const Query& query, Instant now) {
  Table::Shard shard(*core_->table, core_->table->Hash(query.tag));
  Slot* slot = shard.Find(query.tag, now);
  if (slot == nullptr) return false;
  shard.Erase(slot);
  return true;
}

Standing Limiter::GiveBack(const Query& query, Instant now) {
  LimiterCore& core = *core_;
  Table::Shard shard(*core.table, core.table->Hash(query.tag));
  Slot* slot = shard.Find(query.tag, now);
  const auto index = slot != nullptr ? std::optional(LimitIndex{slot->limit}) : LimitOf(*core.rules, query);
  if (!index.has_value() || core.limit(*index).mode == Mode::kOff) return {};
  const Limit& limit = core.limit(*index);
  const Shape shape = ways_->With(limit, [&](auto& way) { return way.ShapeOf(query.tag, limit, now); });
  if (slot == nullptr) return {shape, Bucket()};
  slot->bucket.Credit(shape, query.cost);
  return {shape, slot->bucket};
}

}    // namespace dthrottle
