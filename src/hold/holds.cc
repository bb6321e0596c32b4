#include "hold/holds.h"

#include <algorithm>
#include <optional>

namespace dthrottle {

namespace {

// Whether a record has not all that is needed of this tag of it.
bool IsLacking(const Tag& tag) {
  return tag.bytes.empty() || tag.is_digest;
}

}    // namespace

void Holds::ReleaseBound(Instant now) {
  table_.ForEachOpen([&](const HoldRecord& record) {
    if (record.bound != 0) Release(record.id, now);
  });
}

void Holds::ReleaseAll(Instant now) {
  table_.ForEachOpen([&](const HoldRecord& record) { Release(record.id, now); });
}

HoldId Holds::Keep(std::span<const Payment> paid, Holder* holder, Instant until) {
  const Instant before = next();
  const HoldId id = table_.Add(paid, until, holder != nullptr);
  KeepLacking(id, paid);
  ++counts_.taken;
  if (holder != nullptr) {
    auto& holds = holder->holds;
    if (holds.size() == holds.capacity()) std::erase_if(holds, [&](HoldId its) { return !table_.IsOpen(its); });
    holds.push_back(id);
  }
  if (next() < before) wake_();
  return id;
}

void Holds::KeepLacking(HoldId id, std::span<const Payment> paid) {
  table_.Find(id)->ForEachTag([&](std::size_t i, const Tag& tag) {
    if (!IsLacking(tag)) return;
    const Query& query = paid[i].query;
    lacking_[id].push_back({std::string(tag.bytes.empty() ? query.tag.bytes : ""), KeptEnds(query)});
  });
}

std::size_t Holds::TagsOf(HoldId id) const {
  const HoldRecord* const record = table_.Find(id);
  return record != nullptr ? record->tags : 0;
}

// The record of a hold, which ends now if its time has come; null: it is forgotten, or has never been.
const HoldRecord* Holds::Look(HoldId id, Instant now) {
  const HoldRecord* const record = table_.Find(id);
  if (record != nullptr && record->state == HoldState::kOpen && record->until <= now) {
    ++counts_.expired;
    End(*record, HoldState::kExpired, {}, now);
  }
  return record;
}

const HoldRecord* Holds::Commit(HoldId id, std::span<const Cost> actual, Instant now) {
  const HoldRecord* const record = Look(id, now);
  if (record == nullptr || (actual.size() != 1 && actual.size() != record->tags)) {
    ++counts_.unknown;
    return nullptr;
  }
  if (record->state != HoldState::kOpen) {
    ++counts_.repeated;
    return record;
  }
  std::array<Cost, kHoldTagsMax> all;
  all.fill(actual[0]);
  if (actual.size() > 1) std::copy(actual.begin(), actual.end(), all.begin());
  ++counts_.committed;
  End(*record, HoldState::kCommitted, std::span(all).first(record->tags), now);
  return record;
}

const HoldRecord* Holds::Release(HoldId id, Instant now) {
  const HoldRecord* const record = Look(id, now);
  if (record == nullptr) {
    ++counts_.unknown;
  } else if (record->state != HoldState::kOpen) {
    ++counts_.repeated;
  } else {
    ++counts_.released;
    End(*record, HoldState::kReleased, {}, now);
  }
  return record;
}

void Holds::Leave(Holder& holder) {
  if (holder.holds.empty()) return;
  const Instant before = next();
  leaving_.push_back(std::exchange(holder.holds, {}));
  if (next() < before) wake_();
}

bool Holds::EndSome(Instant now, std::size_t most) {
  for (; most > 0 && table_.next() <= now; --most) Look(table_.first(), now);
  for (; most > 0 && !leaving_.empty(); --most) {
    std::vector<HoldId>& ids = leaving_.front();
    if (table_.IsOpen(ids.back())) Release(ids.back(), now);
    ids.pop_back();
    if (ids.empty()) leaving_.pop_front();
  }
  return next() <= now;
}

// `actual` is empty where nothing was used.
void Holds::End(const HoldRecord& ending, HoldState state, std::span<const Cost> actual, Instant now) {
  constexpr std::array<Cost, kHoldTagsMax> kNothing{};
  if (actual.empty()) actual = std::span(kNothing).first(ending.tags);
  const HoldRecord record = ending;    // as it was while it was open
  table_.End(ending, state, actual);
  const auto kept = lacking_.extract(record.id);
  std::size_t used = 0;
  record.ForEachTag([&](std::size_t i, Tag tag) {
    std::optional<OverLongTag> over_long;
    if (IsLacking(tag) && !kept.empty()) {
      const Lacking& its = kept.mapped()[used++];
      if (tag.bytes.empty()) tag.bytes = its.bytes;
      over_long = its.ends.Of(tag);
    }
    if (tag.bytes.empty()) return;    // another process took it: what was held stays spent
    const Payment paid = record.PaymentOf(i, tag, over_long ? &*over_long : nullptr);
    if (const Cost held = paid.query.cost; !paid.unpaid) {
      (actual[i] < held ? counts_.returned : counts_.exceeded) += std::max(actual[i], held) - std::min(actual[i], held);
    }
    settle_(paid, actual[i], now);
  });
}

HoldCounts Holds::counts() const {
  HoldCounts counts = counts_;
  counts.max = table_.holds();
  counts.open = table_.open();
  return counts;
}

}    // namespace dthrottle
