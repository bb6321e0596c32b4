#include "rule/own_limits.h"

#include <algorithm>
#include <utility>

#include "base/siphash.h"
#include "bucket/table.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr unsigned kRequestsBits = 27, kSecondsBits = 25, kRuleBits = 12;
static_assert(OwnLimit::kRequestsMax < 1 << kRequestsBits && kRefillSecondsMax < 1 << kSecondsBits);
static_assert(Rulebook::kRulesMax < 1 << kRuleBits && kRequestsBits + kSecondsBits + kRuleBits == 64);

// Not 0, as there is a request.
std::uint64_t KeyOf(const OwnLimit& limit, std::uint32_t rule) {
  return limit.requests | std::uint64_t{limit.seconds} << kRequestsBits |
         std::uint64_t{rule} << (kRequestsBits + kSecondsBits);
}

}    // namespace

// A place is read without the lock once it has its key, which is stored last.
std::optional<std::size_t> OwnLimits::Known(std::uint64_t key, std::size_t half) const {
  std::size_t at = SipHash<1, 3>({key, 0}, {}) % kHalf;
  for (std::uint64_t other; (other = places_[half * kHalf + at].key.load(std::memory_order_acquire)) != 0;
       at = (at + 1) % kHalf) {
    if (other == key) return half * kHalf + at;
  }
  return std::nullopt;
}

// A limit that a peer has named first is this host's from the time on that somebody asks for it here.
std::optional<std::size_t> OwnLimits::FindInUse(std::uint64_t key, Source source) {
  const auto place = Known(key, half_.load(std::memory_order_acquire));
  if (!place.has_value() || !source.is_query()) return place;
  if (places_[*place].told_by.load(std::memory_order_relaxed) == kHere) return place;
  const std::lock_guard lock(mutex_);
  const auto again = Known(key, half_);
  if (!again.has_value()) return again;
  if (const std::uint16_t told_by = places_[*again].told_by.exchange(kHere); told_by != kHere) {
    --told_[told_by], --told_all_;
  }
  return again;
}

std::optional<std::size_t> OwnLimits::Find(const OwnLimit& limit, const Rule& rule, const Limit& its, Source source) {
  const std::uint64_t key = KeyOf(limit, its.rule);
  if (const auto place = FindInUse(key, source)) return place;
  const std::lock_guard lock(mutex_);
  const std::size_t half = half_;
  if (const auto place = Known(key, half)) return place;
  std::uint16_t told_by = source.is_query() ? kHere : source.teller();
  const auto before = unmoved_ > 0 ? Known(key, 1 - half) : std::nullopt;
  if (before.has_value()) {
    told_by = places_[*before].told_by;
    --unmoved_;
  } else if (!HasRoomFor(source)) {
    turned_away_ = true;
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  std::size_t at = SipHash<1, 3>({key, 0}, {}) % kHalf;
  while (places_[half * kHalf + at].key != 0) at = (at + 1) % kHalf;
  const std::size_t place = half * kHalf + at;
  ++used_;
  if (told_by != kHere) ++told_[told_by], ++told_all_;
  places_[place].told_by = told_by;
  Limit& made = limits_[place];
  made = its;
  made.shape = limit.ToShape(parts_);
  if (rule.max_debt.has_value()) made.max_debt = TicksOf(*rule.max_debt, made.shape);
  places_[place].key.store(key, std::memory_order_release);
  return place;
}

bool OwnLimits::HasRoomFor(Source source) const {
  if (used_ + unmoved_ >= kMost) return false;
  return source.is_query() || told_[source.teller()] + told_all_ < kPeersMost;
}

std::size_t OwnLimits::used() const {
  const std::lock_guard lock(mutex_);
  return used_ + unmoved_;
}

bool OwnLimits::wants_room() const {
  const std::lock_guard lock(mutex_);
  return turned_away_ || used_ >= sweep_at_;
}

void OwnLimits::BeginAnew() {
  const std::lock_guard lock(mutex_);
  half_ = 1 - half_;
  unmoved_ = std::exchange(used_, 0);
  told_ = {}, told_all_ = 0;
  turned_away_ = false;
}

void OwnLimits::EndOld() {
  const std::lock_guard lock(mutex_);
  const std::size_t first = (1 - half_) * kHalf;
  for (std::size_t place = first; place < first + kHalf; ++place) places_[place].key = 0;
  unmoved_ = 0;
  sweep_at_ = std::max(kPeersMost, used_ + (kMost - used_) / 2);
}

double OwnLimits::rate(std::size_t place) const {
  const std::uint64_t key = places_[place].key.load(std::memory_order_acquire);
  const std::uint64_t requests = key & ((1 << kRequestsBits) - 1), seconds = key >> kRequestsBits & ((1 << kSecondsBits) - 1);
  return static_cast<double>(requests) / static_cast<double>(seconds) / parts_;
}

}    // namespace dthrottle
