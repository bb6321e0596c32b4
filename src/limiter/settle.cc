// What was paid becomes what was used.
#include "limiter/inspect.h"
#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "limiter/recall.h"
#include "share/derived_tag.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

void Charge(Ways& ways, Asked& asked, Cost tokens) {
  const LimiterCore& core = ways.core();
  Waste unrecorded;
  Waste& waste = asked.slot != nullptr ? asked.shard.waste(asked.slot) : unrecorded;
  asked.bucket().Debit(asked.shape, tokens, asked.now, ways.Get<Debits>().peers().MaxDebt(asked.limit), asked.now, waste,
                       core.waste_window);
  asked.Keep();
  ways.With(asked.limit, [&](auto& way) { way.Charged(asked); });
  if (asked.limit.shared && core.window != 0 && asked.slot != nullptr) asked.shard.AddUnreported(asked.slot, tokens);
}

// Peers hear of what has come back. From now on hits of the tag may come back, also if nothing holds it.
void TellBack(Ways& ways, Asked& asked, Cost tokens) {
  asked.shard.TakeBack(asked.slot, tokens);
  ways.Get<Debits>().MayComeBack(asked.hash, asked.now);
  ways.With(asked.limit, [&](auto& way) { way.CameBack(asked, tokens); });
}

struct Actual {
  Cost cost;
  bool held;    // the tag was held; else it has paid for a take
};

// `member` is the tag that the paid one is charged with; null: it was asked about itself.
Standing SettleOne(Ways& ways, const Query& paid, const Tag* member, Instant taken, const Actual& used, std::size_t lane,
                   Instant now) {
  const Cost actual = used.cost;
  LimiterCore& core = ways.core();
  const std::uint64_t hash = core.table->Hash(paid.tag);
  Table::Shard shard(*core.table, hash);
  Slot* const slot = shard.Find(paid.tag, now);
  if (slot == nullptr && paid.tag.is_digest && paid.over_long == nullptr) return {};
  const auto index = LimitOf(*core.rules, paid, slot);
  if (!index.has_value() || core.limit(*index).mode == Mode::kOff) return {};
  const Limit& limit = core.limit(*index);
  const Shape shape = ways.With(limit, [&](auto& way) { return way.ShapeOf(paid.tag, limit, now); });
  Asked asked{paid, hash, *index, limit, shard, slot, lane, now, shape};
  // Tokens that a worker has spent are not out any more: the bucket has room for what comes back of them.
  if (core.loans.any()) SettleLoans(ways, asked, core.tally.lane(lane));
  if (ways.HasQuota(limit)) {
    actual > paid.cost ? (void)ways.quotas()->Take(paid.tag, hash, limit, actual - paid.cost, now)
                       : ways.quotas()->GiveBack(hash, limit, paid.cost - actual, taken, now);
  }
  if (member != nullptr && limit.among != Among::kFirst) {
    core.among->Settle(hash, AmongTags::NameOf(*member), {paid.cost, actual, used.held}, now);
  }
  if (actual > paid.cost) {
    Charge(ways, asked, actual - paid.cost);
  } else if (asked.slot != nullptr) {
    asked.slot->bucket.Credit(shape, paid.cost - actual, now);
    if (limit.shared && core.window != 0) TellBack(ways, asked, paid.cost - actual);
  }
  return {shape, asked.bucket(), *index};
}

Standing SettleAll(Limiter& limiter, const Payment& paid, const Actual& used, std::size_t lane, Instant now) {
  const Query& query = paid.query;
  const std::vector<std::string> charged = ChargedWith(limiter, query, now);
  if (!paid.with || paid.with == MarkOf(charged)) {
    for (std::size_t i = 0; i < charged.size(); ++i) {
      if ((paid.with_unpaid >> i & 1) != 0) continue;
      const DerivedTag with(charged[i], limiter.ways().core());
      SettleOne(limiter.ways(), with.query(query.cost), &query.tag, paid.at, used, lane, now);
    }
  }
  return paid.unpaid ? Standing() : SettleOne(limiter.ways(), query, nullptr, paid.at, used, lane, now);
}

// Calls show(observer), if one looks at the tag.
template <class Show>
void ShowTo(const LimiterCore& core, const Tag& tag, Show&& show) {
  if (!core.observed.sample().Has(core.table->Hash(tag))) return;
  if (const auto observer = core.observed.observer()) show(*observer);
}

}    // namespace

Standing Limiter::Settle(const Payment& paid, Cost actual, Instant now) {
  ShowTo(*core_, paid.query.tag, [&](Observer& observer) { observer.Settled(paid, actual, now); });
  return SettleAll(*this, paid, {actual, true}, 0, now);
}

void Limiter::GiveUp(const Payment& paid, Instant now) {
  ShowTo(*core_, paid.query.tag, [&](Observer& observer) { observer.Settled(paid, 0, now); });
  SettleAll(*this, paid, {0, false}, 0, now);
}

Standing Limiter::GiveBack(const Query& query, LaneUse lane, Instant now) {
  ShowTo(*core_, query.tag, [&](Observer& observer) { observer.GivenBack(query, now); });
  return SettleAll(*this, {query, now}, {0, false}, lane.number, now);
}

}    // namespace dthrottle
