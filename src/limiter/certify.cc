// How accurate shared limits are: what the certificate is shown.
#include "bucket/table_lookup.h"
#include "limiter/limiter.h"

namespace dthrottle {

void Limiter::Certify(Instant now) {
  if (window_ == 0 || !certificate_.Due(now)) return;
  certificate_.Begin(now, ToDuration(window_));
  for (std::size_t set = 0; set < Certificate::kSets; ++set) {
    for (std::size_t way = 0; way < Certificate::kWays; ++way) {
      if (const std::uint64_t hash = certificate_.At(set, way); hash != 0) CertifyTag(set, way, hash, now);
    }
  }
  for (std::size_t i = 0; i < rules_->rules().size(); ++i) {
    if (!rules_->limit(static_cast<LimitIndex>(i)).shared) continue;
    certificate_.Close(i, counter_of_rule_[i], HeardOf(counter_of_rule_[i]), rules_->rules()[i].tolerance);
  }
}

void Limiter::CertifyTag(std::size_t set, std::size_t way, std::uint64_t hash, Instant now) {
  Table::Shard shard(*table_, hash);
  const TagAccuracy& account = certificate_.tag(set, way);
  const Slot* const slot = shard.Find(account.tag(), now);
  const double hosts = static_cast<double>(peers_ + 1);
  if (slot == nullptr) {    // as good as full
    certificate_.Look(set, way, account.counter, 1, 1, hosts);
    return;
  }
  const Limit& limit = rules_->limit(slot->limit);
  if (!limit.shared) return certificate_.Forget(set, way);
  Tokens level = slot->bucket.Level(limit.shape, now);
  if (Watch* const watch = limit.forecast && Watched(limit) ? watches_->Find(hash) : nullptr) {
    StepWatch(*watch, slot->bucket, limit, now);
    level = watch->forecast.level();    // without what is foretold each report would be a step
  }
  certificate_.Look(set, way, counter_of_rule_[limit.rule], level, limit.shape.burst(), hosts);
}

// Served under a rule, by this host and others.
std::uint64_t Limiter::HeardOf(std::size_t counter) const {
  return CounterTotals(counter).served + debits_[counter].hits;
}

}    // namespace dthrottle
