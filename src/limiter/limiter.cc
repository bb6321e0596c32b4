#include "limiter/limiter.h"

#include <algorithm>

#include "base/check.h"

namespace dthrottle {

NamedTag::NamedTag(std::string bytes, std::size_t tag_bytes_max, const DigestKey& key) : bytes_(std::move(bytes)) {
  query_.cost = 1;
  if (bytes_.size() <= tag_bytes_max) {
    query_.tag = {bytes_};
    return;
  }
  reader_ = std::make_unique<OverLongReader>(key);
  reader_->Read(bytes_);
  reader_->Read("\r");    // as a line's end has it, so that a CR before it is part of the tag
  over_long_ = reader_->Finish();
  query_.tag = {std::string_view(over_long_.digest.data(), over_long_.digest.size()), true};
  query_.over_long = &over_long_;
}

Limiter::Limiter(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, const TableKeys& fresh_keys,
                 std::shared_ptr<const Rulebook> rules, std::size_t lanes, Instant now, std::string_view notes)
    : rules_(std::move(rules)) {
  DT_CHECK(rules_ != nullptr && lanes > 0);
  for (std::size_t i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>());
  counter_of_rule_ = AssignCounters(*rules_);
  Table::Opened opened =
      Table::Open(region, {boot_id, rules_->fingerprint()}, fresh_keys, lanes > 1, *this, now, notes);
  table_ = std::move(opened.table);
  discarded_ = opened.discarded;
}

// ---- What the table asks ----

Claim Limiter::ClaimOf(const Slot& slot, Instant now) const {
  const Limit& limit = rules_->limit(slot.limit);
  return {limit.rule, slot.bucket.Drained(limit.shape, now) > 0.5};
}

void Limiter::Forgot(const Slot& slot, unsigned earned) {
  retention_.Forgot(counter_of_rule_[rules_->limit(slot.limit).rule], earned >= merit::kRefused);
}

bool Limiter::Plausible(const Slot& slot, Instant now) const {
  // Debt has a floor far above this; beyond it, the bytes are not ours.
  constexpr double kDrainedMax = 1e4;
  if (slot.limit >= rules_->limits()) return false;
  const Limit& limit = rules_->limit(slot.limit);
  // A divided limit knows no debt, only parts too small for the whole depth.
  return limit.divided || slot.bucket.Drained(limit.shape, now) <= kDrainedMax;
}

bool Limiter::Reshape(const Tag& tag, Slot& slot, Instant now) const {
  const Limit* before = previous_ != nullptr ? &previous_->limit(slot.limit) : nullptr;
  std::optional<LimitIndex> found;
  if (!tag.is_digest) {
    found = rules_->Find(tag.bytes);
  } else if (before != nullptr && before->rule < previous_->rules().size()) {
    // Of an over-long tag only the digest is left: it stays with the rule of the same name.
    found = rules_->Named(previous_->rules()[before->rule].name);
  }
  if (!found.has_value()) return false;
  const Limit& after = rules_->limit(*found);
  if (after.mode == Mode::kOff) return false;
  if (before == nullptr) {    // the process that knew was killed before it had rewritten this slot
    slot.bucket = slot.bucket.WithoutDebt(after.shape, now);
  } else if (before->shape != after.shape) {
    slot.bucket = slot.bucket.Reshaped(before->shape, after.shape, now);
  }
  slot.limit = *found & kLimitIndexMax;
  return true;
}

// ---- Parts ----

CapacityKey Limiter::KeyOf(const Tag& tag, const Limit& limit) const {
  return CapacityKeyOf(rules_->number(limit.rule), tag.bytes, tag.is_digest);
}

PartTable::Entry* Limiter::EntryOf(const Tag& tag, const Limit& limit) {
  return limit.divided && parts_.size() > 0 ? parts_.Find(KeyOf(tag, limit)) : nullptr;
}

Shape Limiter::ShapeHere(const Limit& limit, const PartTable::Entry* entry, Instant now) const {
  return limit.divided ? PartOf(limit.shape, parts_.PartNow(entry, now)) : limit.shape;
}

bool Limiter::TakeNoted(NotedTag& noted) {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](auto& lane) { return lane->noted_.TryPop(noted); });
}

}    // namespace dthrottle
