#include "share/accuracy/certificate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dthrottle {

namespace {

// A tag that owes nothing and deviated by less has nothing to tell.
constexpr Tokens kNothing = 0.5;

Tokens Weight(const TagAccuracy& tag) {
  return tag.observed.over + tag.observed.under + std::abs(tag.ahead) + tag.debt();
}

}    // namespace

Tokens ExcessOfPeer(const BoundTerms& terms, const PeerAge& peer) {
  return terms.burst + terms.rate * Seconds(std::max(terms.period, peer.heard_ago) + peer.delay);
}

Tokens ExcessBound(const BoundTerms& terms, std::span<const PeerAge> peers) {
  Tokens sum = 0;
  bool late = false;    // somebody's hits are heard only once a period
  for (const PeerAge& peer : peers) {
    Tokens most = ExcessOfPeer(terms, peer);
    if (terms.unheard_max.has_value() && peer.heard_ago <= 2 * terms.period) {
      const auto hearings = static_cast<double>(peer.delay / terms.hearing);
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

void Certificate::Drained(std::uint64_t hash, const Tag& tag, const TagLook& look, const Hits& hits, Tokens unreported,
                          Instant now) {
  if (hash == 0 || tags_.Find(hash) != tags_.kNone) return;
  const Deviation seen{hits.made, 0, hits.paid};
  const std::size_t place = tags_.RoomFor(
      hash, [&](std::size_t there) { return weight(there) < seen.over ? std::optional(weight(there)) : std::nullopt; });
  newly_[look.counter] += seen;
  if (place == tags_.kNone || tags_.HashAt(place) != 0) ++crowded_;
  if (place == tags_.kNone) return;
  auto& [account, past] = tags_[place];
  account = {.kept = KeptTag(tag), .look = look, .ahead = 0, .observed = seen};
  const Past fresh{.retrospect = Retrospect(look.level, period_, now), .told_at = now, .known = unreported};
  if (past == nullptr) past = std::make_unique<Past>(fresh);
  *past = fresh;
  weight(place) = static_cast<float>(Weight(account));
  refused(place) = 0;
  tags_.Put(place, hash);
}

bool Certificate::Served(std::uint64_t hash, const Hits& hits, Instant now) {
  const std::size_t place = tags_.Find(hash);
  if (place == tags_.kNone) return false;
  TakeRefused(place, now);
  Past& past = *tags_[place].past;
  (hits.here ? past.here : past.elsewhere) += hits.hits;
  if (!hits.here) past.foretold = hits.refused.has_value();
  const Tokens known = hits.here ? std::min(past.known, hits.hits) : 0;
  past.known -= known;
  const Tokens late =
      past.retrospect.Served(hits.hits - known, hits.refused.value_or(0), hits.first, hits.from, hits.to);
  past.beyond += std::min(late, hits.made);
  past.unsure += UnsureOf(past, hits);
  return true;
}

// Hits that a peer may have served in another window than they are spread over. It refused for a part of its interval,
// and on average half of that part lies before the hits; the first hit is known.
Tokens Certificate::UnsureOf(const Past& past, const Hits& hits) {
  if (hits.here || hits.refused.has_value()) return 0;
  const double windows = std::min(Seconds(hits.to - hits.from) / Seconds(past.retrospect.window()), 1.0);
  return std::max(hits.hits - 1, 0.0) * windows * past.refused / std::max(past.refused + past.here, 1.0) / 2;
}

// What this host refused since it was looked at. Where nothing tells what others refuse it is taken to be in proportion
// to what they serve.
void Certificate::TakeRefused(std::size_t place, Instant now) {
  Past& past = *tags_[place].past;
  if (now <= past.told_at) return;
  const Tokens here = std::exchange(refused(place), 0);
  const Instant since = std::exchange(past.told_at, now);
  if (here == 0) return;
  past.refused += here;
  const double others = past.foretold ? 0 : past.elsewhere / std::max(past.here, 1.0);
  past.retrospect.Refused(here * (1 + others), since, now);
}

void Certificate::Begin(Instant now) {
  const double memory = std::max(Seconds(kMemory), kMemoryLooks * Seconds(period_));
  age_ = std::exp(-Seconds(now - looked_at_) / memory);
  looked_at_ = now;
  news_.clear();
  for (RuleAccuracy& rule : std::span(rules_).first(rules_used_)) {
    rule.served *= age_, rule.observed *= age_;
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

bool Certificate::Look(std::size_t place, const TagLook& look, Instant now) {
  TagAccuracy& account = tags_[place].account;
  TakeRefused(place, now);
  Past& past = *tags_[place].past;
  Deviation change = past.retrospect.Settle(look.burst, look.rate, now);
  change.over += std::exchange(past.beyond, 0);
  change.blurred += std::exchange(past.unsure, 0);
  account.look = look;
  account.ahead = past.retrospect.ahead();
  past.here *= age_, past.elsewhere *= age_, past.refused *= age_;
  account.observed *= age_;
  account.observed += change;
  Count(look.counter, change);
  RuleAccuracy& rule = Rule(look.counter);
  rule.debt = std::max(rule.debt, account.debt());
  rule.ahead = std::max(rule.ahead, account.ahead);
  const Tokens deviates = Weight(account);
  weight(place) = static_cast<float>(deviates);
  if (look.level < look.burst || deviates >= kNothing || !past.retrospect.complete()) return true;
  Forget(place);
  return false;
}

void Certificate::Close(std::size_t number, std::size_t counter, std::uint64_t served, double tolerance) {
  Count(counter, std::exchange(newly_[counter], {}));
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
  newly_[counter] = {};
  served_before_[counter] = served;
}

std::vector<TagAccuracy> Certificate::Hottest(std::size_t count) const {
  std::vector<TagAccuracy> found;
  for (std::size_t place = 0; place < places(); ++place) {
    if (HashAt(place) != 0) found.push_back(tag(place));
  }
  const auto hotter = [](const TagAccuracy& a, const TagAccuracy& b) { return Weight(a) > Weight(b); };
  const std::size_t n = std::min(count, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end(), hotter);
  found.resize(n);
  return found;
}

const TagAccuracy* Certificate::Find(std::uint64_t hash) const {
  const std::size_t place = tags_.Find(hash);
  return place != tags_.kNone ? &tag(place) : nullptr;
}

}    // namespace dthrottle
