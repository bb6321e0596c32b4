#include "limiter/limiter.h"

#include <vector>

#include "base/check.h"
#include "limiter/retention.h"
#include "limiter/shedder.h"
#include "share/ways.h"

namespace dthrottle {

Limiter::Limiter(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, const TableKeys& fresh_keys,
                 std::shared_ptr<const Rulebook> rules, std::size_t lanes, Instant now, std::string_view notes,
                 std::shared_ptr<const Rulebook> before)
    : core_(std::make_unique<LimiterCore>(lanes)),
      ways_(std::make_unique<Ways>(*core_)),
      shedder_(std::make_unique<Shedder>()),
      retention_(std::make_unique<Retention>(Lane::kCounters)) {
  DT_CHECK(rules != nullptr && lanes > 0);
  core_->rules = std::move(rules);
  core_->began = now;
  std::vector<std::size_t> counters =
      core_->tally.Assign(*core_->rules, [&](std::size_t counter) { Reassigned(counter); });
  core_->tally.Use(counters);
  previous_ = std::move(before);
  const auto rules_before = previous_ != nullptr ? std::optional(previous_->fingerprint()) : std::nullopt;
  Table::Opened opened = Table::Open(region, {boot_id, core_->rules->fingerprint()}, fresh_keys, lanes > 1, *this, now,
                                     notes, rules_before);
  core_->table = std::move(opened.table);
  discarded_ = opened.discarded;
  if (!reshaping()) retired_ = std::move(previous_);
  core_->MakeRoom();
  ways_->Each([](auto& way) { way.Adopted(); });
}

Limiter::~Limiter() = default;

void Limiter::SetTagBytesMax(std::size_t bytes) {
  core_->tag_bytes_max = bytes;
}

void LimiterCore::MakeRoom() {
  if (rules->any_among() && among == nullptr) among = std::make_unique<AmongTags>();
  if (rules->any_penalty()) penalties.Enable();
  if (rules->any_in_flight() && in_flight == nullptr) {
    in_flight = std::make_unique<InFlight>();
    gauges = std::make_unique<Gauges>();
  }
}

const Rulebook& Limiter::rules() const {
  return *core_->rules;
}

Table& Limiter::table() {
  return *core_->table;
}

const Table& Limiter::table() const {
  return *core_->table;
}

std::string Limiter::Notes() const {
  return core_->rules->any_own() ? std::string() : table().Notes();
}

const Tally& Limiter::tally() const {
  return core_->tally;
}

void Limiter::Observe(std::shared_ptr<Observer> observer, TagSample sample) {
  core_->observed.By(std::move(observer), sample);
}

// ---- What the table asks ----

Claim Limiter::ClaimOf(const Slot& slot, Instant now) const {
  const Limit& limit = core_->limit(slot.limit);
  return {limit.rule, slot.bucket.Drained(limit.shape, now) > 0.5};
}

void Limiter::Forgot(const Slot& slot, unsigned earned) {
  retention_->Forgot(core_->tally.counter(core_->limit(slot.limit).rule), earned >= merit::kRefused);
}

// The party that spoke of the tag, as far as the slot tells.
static Source SourceOf(const Slot& slot) {
  const Teller teller = slot.unreported.teller();
  return teller == kNoTeller ? Source::kQuery : Source::Peer(teller - 1u);
}

// Limits that tags name themselves are numbered as a process meets them.
bool Limiter::Restore(const Tag& tag, Slot& slot, WrittenFor written_for, Instant now) const {
  const Rulebook& rules = written_for == WrittenFor::kRulesInForce ? *core_->rules : *previous_;
  if (slot.limit >= rules.limits()) return false;
  if (rules.is_own(slot.limit)) {
    const auto own = rules.FindOwn(tag.bytes, SourceOf(slot));
    if (tag.is_digest || !own.has_value()) return false;
    slot.limit = *own & kLimitIndexMax;
  }
  const Limit& limit = rules.limit(slot.limit);
  return ways_->With(limit, [&](const auto& way) { return way.Plausible(slot.bucket, limit, now); });
}

bool Limiter::Reshape(const Tag& tag, Slot& slot, WrittenFor written_for, Instant now) const {
  const Limit* before = written_for == WrittenFor::kRulesBefore ? &previous_->limit(slot.limit) : nullptr;
  std::optional<LimitIndex> found;
  if (previous_ == core_->rules) {
    if (!previous_->is_own(slot.limit) && (tag.is_digest || !ReadOwnLimit(tag.bytes))) return true;
    if (!slot.unreported.any() && slot.bucket.IsFull(now)) return false;    // as good as none
  }
  if (!tag.is_digest) {
    found = core_->rules->Find(tag.bytes, SourceOf(slot));
  } else if (before != nullptr && before->rule < previous_->rules().size()) {
    // The digest is all that is left of an over-long tag: it stays with the rule of the same name.
    found = core_->rules->Named(previous_->rules()[before->rule].name);
  }
  if (!found.has_value()) return false;
  const Limit& after = core_->limit(*found);
  if (after.mode == Mode::kOff) return false;
  if (before == nullptr) {    // the process that knew was killed before it had rewritten this slot
    slot.bucket = slot.bucket.WithoutDebt(after.shape, now);
  } else if (before->shape != after.shape) {
    slot.bucket = slot.bucket.Reshaped(before->shape, after.shape, now);
  }
  slot.limit = *found & kLimitIndexMax;
  return true;
}

}    // namespace dthrottle
