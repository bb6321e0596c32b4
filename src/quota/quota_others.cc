#include "quota/quota_others.h"

#include <algorithm>
#include <span>

namespace dthrottle {

// ---- One tag ----

QuotaCount QuotaOthers::OfTag::Bounded(QuotaCount count) const {
  count.taken = std::min(count.taken, count.back + quota_);
  return count;
}

void QuotaOthers::OfTag::SetQuota(std::uint64_t quota) {
  if (quota == quota_) return;
  quota_ = quota;
  sum_ = {};
  for (const Other& other : each_) {
    if (other.counter != kAllHosts) sum_ += Bounded(*other.count);
  }
}

std::uint64_t QuotaOthers::OfTag::net() const {
  const bool of_all = !each_.empty() && each_.front().counter == kAllHosts;
  return std::max(sum_.net(), of_all ? Bounded(*each_.front().count).net() : 0);
}

QuotaCount QuotaOthers::OfTag::OfHosts() const {
  QuotaCount sum = sum_;
  for (const Other& other : each_) {
    if (other.counter != kAllHosts && other.counter < kHostCounters) sum -= Bounded(*other.count);
  }
  return sum;
}

void QuotaOthers::OfTag::Sort() {
  std::ranges::sort(each_, {}, &Other::counter);
}

// ---- Slots ----

bool QuotaOthers::Restore(OfTag& of, std::uint32_t slot) {
  if (slots_used_ >= slots_max_) return false;
  ++slots_used_;
  of.slots_.push_back(slot);
  QuotaSlot::OfOthers& others = file_.slot(slot).others;
  for (QuotaCount& count : std::span(others.counts).first(others.size)) {
    of.each_.push_back({count.counter, &count, kNobody});
    if (count.counter != kAllHosts) of.sum_ += of.Bounded(count);
  }
  return true;
}

std::vector<QuotaOthers::Said> QuotaOthers::Keep(const OfTag& of) {
  std::vector<Said> all;
  for (const Other& other : of.each_) {
    if (other.peer != kNobody) all.push_back({other.counter, other.known, other.said, other.peer});
  }
  return all;
}

void QuotaOthers::Resume(OfTag& of, const std::vector<Said>& all) {
  for (const Said& its : all) {
    const auto other = std::ranges::lower_bound(of.each_, its.counter, {}, &Other::counter);
    if (other == of.each_.end() || other->counter != its.counter) continue;
    other->peer = its.peer;
    other->known = std::min(its.known, other->count->taken);
    other->said = its.said;
  }
}

// What the counter has counted of the tag, which may be nothing yet; null: there is no room.
QuotaOthers::Other* QuotaOthers::Find(OfTag& of, std::uint32_t tag, std::uint64_t counter) {
  const auto at = std::ranges::lower_bound(of.each_, counter, {}, &Other::counter);
  if (at != of.each_.end() && at->counter == counter) return &*at;
  if (of.each_.size() == kCountersMax) return nullptr;
  const bool full = of.slots_.empty() || file_.slot(of.slots_.back()).others.size == QuotaSlot::kCounts;
  if (full && !AddSlot(of, tag)) return nullptr;
  QuotaSlot::OfOthers& others = file_.slot(of.slots_.back()).others;
  QuotaCount& count = others.counts[others.size];
  count = {counter, 0, 0};
  std::atomic_ref(others.size).store(others.size + 1, std::memory_order_release);
  return &*of.each_.insert(at, {counter, &count, kNobody});
}

bool QuotaOthers::AddSlot(OfTag& of, std::uint32_t tag) {
  if (slots_used_ >= slots_max_) return false;
  const auto taken = file_.Take();
  if (!taken.has_value()) return false;
  ++slots_used_;
  QuotaSlot& slot = file_.slot(*taken);
  slot.period = file_.slot(tag).period;
  slot.until = 0;
  slot.others.tag = tag;
  slot.others.size = 0;
  QuotaFile::SetKind(slot, QuotaSlot::kCounted);
  of.slots_.push_back(*taken);
  return true;
}

void QuotaOthers::SetPeriod(const OfTag& of, std::uint64_t begin) {
  for (const std::uint32_t slot : of.slots_) file_.slot(slot).period = begin;
}

void QuotaOthers::Free(OfTag& of) {
  for (const std::uint32_t slot : of.slots_) file_.Free(slot);
  slots_used_ -= of.slots_.size();
  of = OfTag();
}

// ---- Words ----

// What another host passes on may have come back since, as far as the counter's own peer has said to have used as much.
bool QuotaOthers::Hear(OfTag& of, std::uint32_t tag, const QuotaWord& word, std::uint32_t peer) {
  Other* const other = Find(of, tag, word.counter);
  if (other == nullptr) return false;
  if (!word.back.has_value() && word.taken <= other->said) return true;
  QuotaCount& count = *other->count;
  const std::uint64_t back = word.back.value_or(count.back);
  const std::uint64_t taken = std::min(word.back ? word.taken : word.taken + back, QuotaFile::kCountMax);
  of.sum_ -= of.Bounded(count);
  if (!word.back.has_value()) {
    other->known = std::max(other->known, std::min(word.taken, QuotaFile::kCountMax));
  } else if (other->peer == kNobody) {
    other->known = std::max(other->known, count.net());
  }
  count.taken = std::max(count.taken, taken);
  if (word.back.has_value()) {
    HearBack(*other, back, peer);
    if (other->peer == peer) other->said = std::max(other->said, taken - std::min(back, taken));
  }
  of.sum_ += of.Bounded(count);
  return true;
}

// One peer says of a counter what came back. Where two do, one of them lies, and none is believed. The first one may lie
// as well, of a host that is gone, or that has not spoken since this one began: so what is known without it stays.
void QuotaOthers::HearBack(Other& other, std::uint64_t back, std::uint32_t peer) {
  if (other.peer == kNobody) other.peer = peer;
  if (other.peer != peer && other.peer != kDisputed) {
    other.peer = kDisputed;
    disputed_.fetch_add(1, std::memory_order_relaxed);
  }
  QuotaCount& count = *other.count;
  count.back = other.peer == kDisputed ? 0 : std::max(count.back, std::min(back, count.taken - other.known));
}

bool QuotaOthers::HearOwner(OfTag& of, std::uint32_t tag, const QuotaCount& all) {
  Other* const other = Find(of, tag, kAllHosts);
  if (other == nullptr) return false;
  QuotaCount& count = *other->count;
  count.taken = std::max(count.taken, std::min(all.taken, QuotaFile::kCountMax));
  count.back = std::min(std::max(count.back, all.back), count.taken);
  return true;
}

void QuotaOthers::Inherit(OfTag& of, std::uint32_t tag, std::uint64_t counter, const QuotaSlot::OfTag& own) {
  Hear(of, tag, {counter, file_.slot(tag).period, own.taken, own.back}, kNobody);
}

}    // namespace dthrottle
