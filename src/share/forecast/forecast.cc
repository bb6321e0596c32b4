#include "share/forecast/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/math.h"

namespace dthrottle {

namespace {

// All found by simulation over the workloads of test/bench/accuracy_bench.cc, unless there is a reason beside them.
constexpr double kMoved = 1;             // a demand has moved if it makes so many thresholds in kMovedWithin
constexpr double kMovedNoise = 3;        // and exceeds so many standard deviations of its measurement
constexpr double kRefresh = 2;           // periods after which a demand is announced again (a peer forgets it after 3)
constexpr double kTrust = 4;             // s in which the level follows the bucket's
constexpr double kLinear = 0.005;        // s in which p is as good as constant
constexpr double kByOwner = 1.5;         // times RationedBelow: hosts hear twice as late of a level that an owner keeps
}    // namespace

Forecast::Forecast(Tokens level, Tokens unreported, Instant now)
    : level_(level),
      unheard_(unreported),
      meter_(now),
      taking_(unreported > 0),
      said_at_(now - kReportGap),
      stepped_(now - kStep),
      active_at_(now),
      full_at_(now) {}

void Forecast::Step(Tokens bucket, const Pace& pace, Instant now) {
  if (now <= stepped_) return;
  Charge();
  const double dt = Seconds(now - stepped_);
  if (meter_.Step(dt, pace.demand_memory(), usual_cost_, stepped_ + kStep, now)) active_at_ = now;
  stepped_ = now;
  if (bucket >= pace.burst) {
    full_at_ = now;
    const Tokens wasted = std::min(pace.rate * dt, bucket - pace.burst);
    wasted_ = std::min(wasted_ + wasted, kReachPeriods * pace.period * pace.rate);
    bucket = pace.burst;
  }

  const double demand = demand_ + peers_.demand();
  const double earned = dt <= kLinear ? share_ * dt : Earned(pace, demand, level_ + margin_, pace.Target(delta_), dt);
  peers_.Earn(earned);
  unheard_ -= demand_ * earned;
  // What was earned while there was plenty is kept, for a burst finds hosts that do not know of each other's demand.
  SettleCredit();
  credit_ = std::max(credit_, std::min(credit_ + demand_ * earned, usual_cost_ * pace.CreditMax(share_ >= 1)));
  unheard_ -= flying_.Land(now - PeersDemand::kHearing);
  level_ = std::min(level_ + pace.rate * dt - peers_.demand() * earned, bucket);
  // The bucket lets wasted refill pay for what was heard late, which errs in favour of the client. In the long run it
  // is right, and it is the first to know of a pardon.
  const Tokens missed = bucket - peers_.foretold() - level_;
  if (missed > 0) level_ += missed * (bucket >= pace.burst ? 1 : dt / (kTrust + dt));
  // A level that is too high follows the bucket too. Two hosts that heard of the first hits at different times would
  // never agree otherwise. The bucket says nothing where peers are foretold to have served a burst: it wastes refill.
  const Tokens beyond = -missed - std::min(wasted_, std::max(peers_.foretold(), 0.0));
  if (beyond > 0 && peers_.foretold() < pace.burst) level_ -= beyond * dt / (kTrust + dt);
  if (now - said_at_ >= PeersDemand::kSomeHear) demand_ = announced_;
  SetShare(pace);

  unheard_max_ = pace.unheard_max;
  budget_.Step(pace, dt);
  SetThreshold(pace);
  const double change = meter_.seen() - announced_, since = Seconds(now - said_at_);
  const double variance = usual_cost_ * std::max(meter_.moved(), announced_) / (2 * pace.demand_memory());
  const bool foretelling = announced_ + peers_.demand() > 0;
  moved_ = (foretelling && std::abs(change) * kMovedWithin >= kMoved * threshold_ &&
            Square(change) > Square(kMovedNoise) * variance) ||
           (announced_ > 0 && since >= (far_ ? kBelievedPeriods : kRefresh) * pace.period);
}

void Forecast::SetShare(const Pace& pace) {
  const double demand = demand_ + peers_.demand();
  margin_ = Margin(pace, {demand, peers_.foretold(), delta_, usual_cost_});
  const Tokens level = level_ + margin_, target = pace.Target(delta_);
  share_ = ShareOf(pace, demand, level, target);
  SettleCredit();
  rationed_ = share_ < 1 && demand_ > 0 && peers_.demand() > 0 &&
              level < (owner_said_ ? kByOwner : 1) * RationedBelow(pace, demand, target);
}

// A report is due one query before U is reached, or that query would have to wait for it. Peers foretell nothing of a
// host that has announced nothing, so its first report is due at half of U: the other half is served while it is on its
// way.
void Forecast::SetThreshold(const Pace& pace) {
  const Tokens kept = owner_said_ ? pace.FarKept(level_) : 0;
  far_ = kept > 0;
  threshold_ = std::max(budget_.Threshold(pace), kept);
  Tokens unheard = pace.unheard_max - std::max(cost_, usual_cost_);
  if (announced_ == 0) unheard = std::min(unheard, pace.unheard_max / 2);
  due_from_ = std::min(threshold_, std::max(unheard, kThresholdMin)) + flying_.sum();
}

// The query that makes a report due has just raised the mean by its cost divided by the memory, and peers use the
// announced demand until the next report. Before a Poisson query the mean is right, so the rise is taken out; else 64
// hosts whose queries cost 5 announce half as much again as they are asked for. One token of it stays in, because a
// demand that begins is then known sooner.
double Forecast::announces(const Pace& pace) const {
  const Tokens cost = std::max(cost_, usual_cost_), risen = Overdue() ? (cost - 1) / pace.demand_memory() : 0;
  const double demand = meter_.seen() - risen;
  return demand >= PeersDemand::kMin ? demand : 0;
}

void Forecast::Report(const Pace& pace, Instant now) {
  Charge();
  announced_ = announces(pace);
  budget_.Sent(pace, Strays());
  // What was reported shortly before may still be on its way too.
  unheard_ = std::max(unheard_, 0.0);
  flying_.Leave(unheard_, now);
  usual_cost_ = std::exchange(cost_, 1);
  SetThreshold(pace);
  delta_ = budget_.Threshold(pace);
  said_at_ = now;
  moved_ = held_ = taking_ = false;
  SetShare(pace);
}

Heed Forecast::Heard(const PeerWord& word, const Pace& pace, Instant now) {
  Heed heed = Heed::AsStated(word);
  Charge();
  active_at_ = now;
  PeersDemand::Peer& peer = peers_.Of(word);
  // Hits beyond what was foretold are what made the peer report. They are new, so the pause before them does not pay
  // for them. A peer that announces nothing is asked for less than PeersDemand::kMin.
  const double waited = std::max(Seconds(word.to - std::max(peer.heard, word.when)), 0.0);
  const Tokens unannounced = peer.demand == 0 ? PeersDemand::kMin * waited : 0;
  heed.paid = Pay(peers_.Foretold(peer) + unannounced, std::max(peers_.foretold(), 0.0) + unannounced, word, pace);
  level_ -= word.hits;
  if (word.to < peer.heard) {    // late, and nothing new about its demand
    peer.missing = std::max(peer.missing - word.hits, 0.0);
    return heed;
  }
  level_ += peers_.Hear(peer, word, {demand_, share_}, pace, now, heed);
  SetShare(pace);
  return heed;
}

// A bucket's own account of waste does not know when it was wasted: it pays for each peer's hits of the last moment out
// of what was wasted in the last two periods, and begins anew after a rest, although hits that were foretold during
// that rest are still to come. Here every moment's waste is known, and so is what was foretold. Two hosts that disagree
// about a payment keep different levels until the tag rests, so the account is exact.
Tokens Forecast::Pay(Tokens most, Tokens wasted_max, const PeerWord& word, const Pace& pace) {
  wasted_ = std::min(wasted_, wasted_max);
  const Tokens paid = std::min({word.hits, most, wasted_, pace.rate * std::max(Seconds(full_at_ - word.when), 0.0)});
  wasted_ -= paid;
  return paid;
}

void Forecast::CameBack(Tokens tokens, const Pace& pace) {
  Charge();
  level_ += tokens;
  unheard_ -= tokens;
  credit_ = std::max(credit_, std::min(credit_ + tokens, usual_cost_ * pace.CreditMax(share_ >= 1)));
  meter_.CameBack(tokens);
}

void Forecast::PeerGaveBack(Tokens tokens, const Pace& pace) {
  level_ += tokens;
  SetShare(pace);
}

OwnersWord Forecast::WordFor(std::uint32_t peer) const {
  const PeersDemand::Peer* const its = peers_.Find(peer);
  if (its == nullptr) return {std::max(demand_ + peers_.demand(), 0.0), level()};
  return {std::max(demand_ + peers_.demand() - its->demand, 0.0), level() + peers_.Foretold(*its)};
}

// Reports of this host that were on their way have come, so nothing is unheard but what was served since.
void Forecast::OwnerSaid(Tokens bucket, Tokens unreported, const OwnersWord& word, const Pace& pace, Instant now) {
  Charge();
  unheard_ -= flying_.LandAll();
  level_ = std::min(word.level - unreported, bucket);
  peers_.Assume(word.demand < PeersDemand::kMin / 2 ? 0 : word.demand, bucket - level_);
  owner_said_ = now;
  SetShare(pace);
}

void Forecast::OwnedHere(Tokens bucket, const Pace& pace) {
  Charge();
  unheard_ -= flying_.LandAll();
  level_ = bucket;
  peers_.Assume(peers_.demand(), 0);
  if (owner_said_) peers_.Forget();
  owner_said_.reset();
  SetShare(pace);
}

void Forecast::ForgetOwner(Duration since, Instant now) {
  if (!owner_said_ || now - std::max(*owner_said_, active_at_) < since) return;
  owner_said_.reset();
  peers_.Assume(0, 0);
}

}    // namespace dthrottle
