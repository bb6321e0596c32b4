#include "limiter/certificate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "limiter/forecast.h"

namespace dthrottle {

namespace {

// A tag that owes nothing and deviated by less has nothing to tell.
constexpr Tokens kNothing = 0.5;

Tokens Weight(const TagAccuracy& tag) {
  return tag.observed.over + tag.observed.under + std::abs(tag.ahead) + tag.debt;
}

}    // namespace

Deviation LookAgain(Tokens& ahead, const TagLook& look) {
  if (look.level >= look.burst && look.refused == 0) {    // what was short of full is made up for
    ahead = 0;
    return {};
  }
  const Tokens ideal = std::clamp(look.level + ahead - look.refused, 0.0, look.burst);
  const Tokens change = ideal - look.level - ahead;
  ahead += change;
  return {std::max(change, 0.0), std::clamp(-change, 0.0, look.refused)};
}

Tokens ExcessBound(const BoundTerms& terms, std::span<const PeerAge> peers) {
  Tokens sum = 0;
  bool late = false;    // somebody's hits are heard only once a period
  for (const PeerAge& peer : peers) {
    const Duration age = std::max(terms.period, peer.heard_ago) + peer.delay;
    Tokens most = terms.burst + terms.rate * Seconds(age);
    if (terms.unheard_max.has_value() && peer.heard_ago <= 2 * terms.period) {
      const auto hearings = static_cast<double>(peer.delay / Forecast::kHearing);
      most = std::min(most, *terms.unheard_max * (1 + hearings));
    } else {
      late = true;
    }
    sum += most;
  }
  return late ? sum + 2 * terms.rate * Seconds(terms.period) : sum;
}

double RuleAccuracy::Percent(Tokens part) const {
  const Tokens ideal = served - observed.over + observed.under;
  return ideal > 0 ? 100 * part / ideal : 0;
}

void Certificate::Drained(std::uint64_t hash, const Tag& tag, std::size_t counter, Tokens debt, Tokens made) {
  Set& set = sets_[hash >> kShift];
  if (hash == 0) return;    // which says that a way is free
  std::size_t least = 0;
  float lightest = std::numeric_limits<float>::max();
  for (std::size_t way = 0; way < kWays; ++way) {
    const std::uint64_t there = set.hashes[way].load(std::memory_order_relaxed);
    if (there == hash) return;    // it is looked at
    const float weight = there == 0 ? -1 : set.weights[way];
    if (weight < lightest) lightest = weight, least = way;
  }
  TagAccuracy& account = tags_[(hash >> kShift) * kWays + least];
  if (set.hashes[least].load(std::memory_order_relaxed) != 0) {
    ++crowded_;
    if (lightest >= made) return Count(counter, {made, 0});
    Count(account.counter, {std::max(account.debt - account.ahead, 0.0), 0});    // what no look has counted
  }
  account.size = static_cast<std::uint8_t>(tag.bytes.size());
  std::memcpy(account.bytes.data(), tag.bytes.data(), tag.bytes.size());
  account.is_digest = tag.is_digest;
  account.counter = counter;
  account.ahead = debt - made;    // that is nobody's news
  account.debt = debt;
  account.observed = {};
  set.weights[least] = static_cast<float>(Weight(account));
  set.refused[least] = 0;
  set.hashes[least].store(hash, std::memory_order_relaxed);
}

void Certificate::Begin(Instant now, Duration period) {
  const double memory = std::max(Seconds(kMemory), kMemoryLooks * Seconds(period));
  age_ = std::exp(-Seconds(now - looked_at_) / memory);
  looked_at_ = now;
  news_.clear();
  for (RuleAccuracy& rule : std::span(rules_).first(rules_used_)) {
    rule.served *= age_, rule.observed.over *= age_, rule.observed.under *= age_;
    rule.debt = rule.ahead = 0;
  }
}

RuleAccuracy& Certificate::Rule(std::size_t counter) {
  rules_used_ = std::max(rules_used_, counter + 1);
  return rules_[counter];
}

void Certificate::Count(std::size_t counter, const Deviation& change) {
  RuleAccuracy& rule = Rule(counter);
  rule.observed += change;
  rule.ever += change;
  ever_ += change;
}

bool Certificate::Look(std::size_t set, std::size_t way, std::size_t counter, Tokens level, Tokens burst,
                       double hosts) {
  TagAccuracy& account = tags_[set * kWays + way];
  const Tokens refused = hosts * std::exchange(sets_[set].refused[way], 0);
  const Deviation change = LookAgain(account.ahead, {level, burst, refused});
  account.counter = counter;
  account.debt = std::max(-level, 0.0);
  account.observed.over *= age_, account.observed.under *= age_;
  account.observed += change;
  Count(counter, change);
  RuleAccuracy& rule = Rule(counter);
  rule.debt = std::max(rule.debt, account.debt);
  rule.ahead = std::max(rule.ahead, account.ahead);
  const Tokens weight = Weight(account);
  sets_[set].weights[way] = static_cast<float>(weight);
  if (level < burst || weight >= kNothing) return true;
  Forget(set, way);
  return false;
}

void Certificate::Close(std::size_t number, std::size_t counter, std::uint64_t served, double tolerance) {
  RuleAccuracy& rule = Rule(counter);
  rule.served += static_cast<double>(served - std::min(served, served_before_[counter]));
  served_before_[counter] = served;
  const double over = rule.over_percent();
  const bool alarmed =
      tolerance > 0 && rule.observed.over >= kAlertMin && over > (rule.alarmed ? kAlertEnds * tolerance : tolerance);
  if (alarmed != rule.alarmed) news_.push_back({number, alarmed, over, tolerance});
  alerts_ += alarmed && !rule.alarmed;
  rule.alarmed = alarmed;
}

void Certificate::Reassign(std::size_t counter, std::uint64_t served) {
  rules_[counter] = {};
  served_before_[counter] = served;
}

std::vector<TagAccuracy> Certificate::Hottest(std::size_t count) const {
  std::vector<TagAccuracy> found;
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    if (At(i / kWays, i % kWays) != 0) found.push_back(tags_[i]);
  }
  const auto hotter = [](const TagAccuracy& a, const TagAccuracy& b) { return Weight(a) > Weight(b); };
  const std::size_t n = std::min(count, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end(), hotter);
  found.resize(n);
  return found;
}

const TagAccuracy* Certificate::Find(std::uint64_t hash) const {
  const std::size_t set = hash >> kShift;
  for (std::size_t way = 0; way < kWays; ++way) {
    if (At(set, way) == hash && hash != 0) return &tags_[set * kWays + way];
  }
  return nullptr;
}

std::size_t Certificate::tags() const {
  std::size_t used = 0;
  for (std::size_t i = 0; i < tags_.size(); ++i) used += At(i / kWays, i % kWays) != 0;
  return used;
}

}    // namespace dthrottle
