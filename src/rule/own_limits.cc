#include "rule/own_limits.h"

#include "base/siphash.h"
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
std::optional<std::size_t> OwnLimits::Find(const OwnLimit& limit, const Rule& rule, const Limit& its) {
  const std::uint64_t key = KeyOf(limit, its.rule);
  std::size_t place = SipHash<1, 3>({key, 0}, {}) % kRoom;
  const auto known = [&] {
    for (std::uint64_t other; (other = keys_[place].load(std::memory_order_acquire)) != 0; place = (place + 1) % kRoom) {
      if (other == key) return true;
    }
    return false;
  };
  if (known()) return place;
  const std::lock_guard lock(mutex_);
  if (known()) return place;
  if (used_ == kMost) return std::nullopt;
  ++used_;
  Limit& made = limits_[place];
  made = its;
  made.shape = limit.ToShape();
  if (rule.max_debt.has_value()) made.max_debt = TicksOf(*rule.max_debt, made.shape);
  keys_[place].store(key, std::memory_order_release);
  return place;
}

double OwnLimits::rate(std::size_t place) const {
  const std::uint64_t key = keys_[place].load(std::memory_order_acquire);
  const std::uint64_t requests = key & ((1 << kRequestsBits) - 1), seconds = key >> kRequestsBits & ((1 << kSecondsBits) - 1);
  return static_cast<double>(requests) / static_cast<double>(seconds);
}

}    // namespace dthrottle
