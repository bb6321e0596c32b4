// Work between queries: other rules, and rewriting the table for them.
#include <utility>

#include "limiter/limiter.h"
#include "limiter/retention.h"
#include "share/ways.h"

namespace dthrottle {

void Limiter::Adopt(std::shared_ptr<const Rulebook> rules) {
  LimiterCore& core = *core_;
  std::vector<std::size_t> counters = core.tally.Assign(*rules, [&](std::size_t counter) { Reassigned(counter); });
  core.table->Exclusively([&] {
    previous_ = std::exchange(core.rules, std::move(rules));
    core.tally.Use(counters);
    core.MakeRoom();
    ways_->Each([](auto& way) { way.Adopted(); });
    // Under an equal fingerprint every slot says already what it should, unless its tag names the limit itself.
    const bool same = previous_->fingerprint() == core.rules->fingerprint() && !core.rules->any_own();
    if (!same) core.table->StartGeneration(core.rules->fingerprint());
  });
  if (!reshaping()) retired_ = std::move(previous_);
}

void Limiter::RenewOwnLimits() {
  LimiterCore& core = *core_;
  core.table->Exclusively([&] {
    previous_ = core.rules;
    core.rules->own()->BeginAnew();
    core.table->StartGeneration(core.rules->fingerprint());
  });
}

void Limiter::Reassigned(std::size_t counter) {
  ways_->Each([&](auto& way) { way.Reassigned(counter); });
  retention_->Reassign(counter);
}

bool Limiter::Tick(Instant now) {
  constexpr std::size_t kGroupsPerSlice = 32;
  if (!reshaping()) return false;
  if (core_->table->ReshapeSome(kGroupsPerSlice, now)) return true;
  if (previous_ == core_->rules) {
    if (core_->rules->any_own()) core_->rules->own()->EndOld();
    previous_.reset();
  }
  retired_ = std::move(previous_);
  return false;
}

void Limiter::SampleRetention(Instant now) {
  retention_->Sample(
      *core_->table, [&](LimitIndex limit) { return core_->tally.counter(core_->limit(limit).rule); }, now);
}

}    // namespace dthrottle
