#include "limiter/forecast.h"

#include <algorithm>
#include <cmath>

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

// All found by simulation over the workloads of test/bench/accuracy_bench.cc.
constexpr double kRelax = 0.15;          // s in which the level comes back to its target
constexpr double kSlow = 0.7;            // s of the EWMA of demand
constexpr double kFalseAlarms = 0.02;    // of a pause taken for an end of demand, a second
constexpr double kPauseMin = 3;          // queries that a pause has lacked, at least
constexpr double kUnlikely = 3.7;        // standard deviations of a Poisson count
constexpr double kLuck = 1;              // queries that make a count conspicuous by chance
constexpr double kMeanMin = 0.5;
constexpr Tokens kBlock = 16;    // queries after which the count begins anew
constexpr Duration kBlockMax = 4s, kRest = 500ms;
constexpr double kDemandMin = 0.5;       // tokens/s; less is not announced
constexpr double kMoved = 1;             // thresholds of which a demand moves in kMovedWithin
constexpr double kMovedWithin = 0.25;    // s
constexpr double kMovedNoise = 3;        // and standard deviations
constexpr Tokens kCreditPlenty = 2;
constexpr Tokens kCreditMin = 1, kCreditOfAll = 4;    // most credit: the first, and of the second a root_hosts-th
constexpr Tokens kThresholdMin = 1;
constexpr double kPerEntry = 0.2;    // of the threshold's logarithm, for each entry that was sent too many,
constexpr double kToStay = kPerEntry * kPerEntry;    // and what stays of it: a control loop whose damping is 0.7
constexpr double kSavedMin = -30, kSavedMax = 4;     // entries
constexpr double kSavedFirst = -2.5;                 // what a tag begins with, at the least threshold:
constexpr double kBaseMin = kPerEntry * kSavedFirst;
// Where nothing is foretold more has to be said, and those of the first periods are not made up for. Begins at 2.
constexpr double kEagerBase = 0.41, kEagerPerEntry = 0.113;
constexpr double kTargetNoise = 0.12;                    // of root_hosts thresholds
constexpr double kTargetMin = 0.02, kTargetMax = 0.1;    // of the burst
constexpr double kRefresh = 2;       // periods after which a demand is announced again (a peer forgets it after 3)
constexpr double kTrust = 4;         // s in which the level follows the bucket's up
constexpr double kLinear = 0.005;    // s in which p is as good as constant

double Squared(double x) {
  return x * x;
}

// Of a Poisson count from its mean: twice the logarithm of how much likelier the count would be if it were the mean.
double Deviance(double count, double mean) {
  if (count == 0) return 2 * mean;
  mean = std::max(mean, kMeanMin);
  return 2 * (mean - count + count * std::log(count / mean));
}

Tokens ThresholdMax(const Pace& pace) {
  return std::max(pace.burst / 2, kThresholdMin);
}

}    // namespace

Forecast::Forecast(Tokens level, Tokens unreported, Instant now)
    : level_(level),
      unheard_(unreported),
      asked_at_(now),
      block_at_(now),
      saved_(kSavedFirst),
      base_(kBaseMin),
      said_at_(now - kReportGap),
      began_(now),
      stepped_(now - kStep),
      active_at_(now),
      full_at_(now) {}

void Forecast::Step(Tokens bucket, const Pace& pace, Instant now) {
  if (now <= stepped_) return;
  Charge();
  const double dt = Seconds(now - stepped_);
  MeasureDemand(dt, stepped_ + kStep, now);
  stepped_ = now;
  if (bucket >= pace.burst) {
    full_at_ = now;
    wasted_ = std::min(wasted_ + pace.rate * dt, pace.rate * pace.period);
  }

  const double earned = Earned(dt, pace);
  earned_ += earned;
  foretold_ += peers_demand_ * earned;
  unheard_ -= demand_ * earned;
  // What was earned while there was plenty is kept, for a burst finds hosts that do not know of each other's demand.
  const Tokens credit_max = (share_ < 1 ? kCreditMin : kCreditPlenty) + kCreditOfAll / pace.root_hosts;
  SettleCredit();
  credit_ = std::max(credit_, std::min(credit_ + demand_ * earned, credit_max));
  if (flying_ != 0 && now - flown_at_ >= kHearing) {
    unheard_ -= flying_;
    flying_ = 0;
  }
  level_ = std::min(level_ + pace.rate * dt - peers_demand_ * earned, bucket);
  // The bucket lets wasted refill pay for what was heard late, and errs for the client there; but it is what in the end
  // is right, and the first to know of a pardon.
  const Tokens missed = bucket - foretold_ - level_;
  if (missed > 0) level_ += missed * (bucket >= pace.burst ? 1 : dt / (kTrust + dt));
  if (now - said_at_ >= kSomeHear) demand_ = announced_;
  SetShare(pace);

  unheard_max_ = pace.unheard_max;
  const double periods = dt / pace.period;
  saved_ = std::min(saved_ + periods, kSavedMax);
  if (saved_ > 0) base_ = std::max(base_ - kToStay * saved_ * periods, kBaseMin);
  SetThreshold(pace);
  const double change = seen_ - announced_, since = Seconds(now - said_at_);
  const bool foretelling = announced_ + peers_demand_ > 0;
  moved_ = (foretelling && std::abs(change) * kMovedWithin >= kMoved * threshold_ &&
            Squared(change) > Squared(kMovedNoise) * std::max(seen_, announced_) / (2 * kSlow)) ||
           (announced_ > 0 && since >= kRefresh * pace.period);
}

// Queries since the step before were asked by `asked_by`, for each comes with a step unless one has just been.
void Forecast::MeasureDemand(double dt, Instant asked_by, Instant now) {
  seen_ += (asked_ / dt - seen_) * dt / (kSlow + dt);
  if (asked_ > 0) {
    active_at_ = now;
    asked_at_ = std::min(now, asked_by);
    if (block_ == 0 && now - block_at_ > kRest) {
      block_at_ = asked_at_;    // and this query begins the block, so it does not count
    } else {
      block_ += asked_;
    }
    asked_ = 0;
  }
  if (block_seen_ * Seconds(now - asked_at_) > std::max(std::log(block_seen_ / kFalseAlarms), kPauseMin)) {
    block_seen_ = seen_ = block_ = 0;
    block_at_ = asked_at_;
    return;
  }
  const double t = Seconds(now - block_at_), likely = block_seen_ * t;
  if (t > 0 && Deviance(block_, likely) > Squared(kUnlikely)) {
    seen_ = (block_ > likely ? block_ - kLuck : block_) / t;
  } else if (block_ < kBlock && now - block_at_ < kBlockMax) {
    return;
  }
  block_seen_ = seen_;
  block_ = 0;
  block_at_ = now;
}

// The level that leaves room for what no host has heard of yet.
Tokens Forecast::Target(const Pace& pace) const {
  const double least = kTargetMin * (1 + 1 / pace.root_hosts);
  return std::clamp(kTargetNoise * pace.root_hosts * delta_, least * pace.burst, kTargetMax * pace.burst);
}

// All together get what flows in, and of what is above the target what brings the level there within kRelax.
void Forecast::SetShare(const Pace& pace) {
  const double demand = demand_ + peers_demand_;
  const double given = std::max(pace.rate + (level_ - Target(pace)) / kRelax, 0.0);
  share_ = demand > given ? given / demand : 1;
  SettleCredit();
  rationed_ = share_ < 1 && demand_ > 0 && peers_demand_ > 0;
}

// The integral of p over the next `dt`, if nobody says anything. It has three parts: while there is plenty, p is 1 and
// the level falls; then it goes to the target exponentially; far below the target p is 0 and the level rises.
double Forecast::Earned(double dt, const Pace& pace) const {
  if (dt <= kLinear) return share_ * dt;
  const double demand = demand_ + peers_demand_, target = Target(pace);
  if (demand <= 0) return dt;
  double level = level_, earned = 0;
  if (const double plenty = target + kRelax * (demand - pace.rate); level >= plenty) {
    const double lasts = demand > pace.rate ? std::min(dt, (level - plenty) / (demand - pace.rate)) : dt;
    earned += lasts;
    dt -= lasts;
    level = plenty;
  } else if (const double nothing = target - kRelax * pace.rate; level < nothing) {
    dt -= std::min(dt, (nothing - level) / pace.rate);
    level = nothing;
  }
  return earned + std::min(dt, (pace.rate * dt + (level - target) * (1 - std::exp(-dt / kRelax))) / demand);
}

// Follows the entries that were sent too many, so it keeps to one a period; and learns of them where it stands when
// there are none, so that those of the first periods are made up for.
void Forecast::SetThreshold(const Pace& pace) {
  const double logarithm = pace.foretold ? base_ - kPerEntry * saved_ : kEagerBase - kEagerPerEntry * saved_;
  threshold_ = std::clamp(std::exp(logarithm), kThresholdMin, ThresholdMax(pace));
  due_from_ = std::min(threshold_, std::max(pace.unheard_max, kThresholdMin)) + flying_;
}

double Forecast::announces() const {
  return seen_ >= kDemandMin ? seen_ : 0;
}

void Forecast::Report(const Pace& pace, bool foretold, Instant now) {
  Charge();
  const bool strayed = Strays();
  saved_ = std::max(saved_ - 1, kSavedMin);
  // Of other reports there are no fewer when the threshold is higher.
  if (strayed && saved_ < 0) base_ = std::min(base_ - kToStay * saved_, std::log(ThresholdMax(pace)));
  // What was reported shortly before may still be on its way too.
  flying_ = std::max(unheard_, 0.0);
  unheard_ = flying_;
  SetThreshold(pace);
  delta_ = threshold_;
  flown_at_ = said_at_ = now;
  announced_ = foretold ? announces() : 0;
  moved_ = held_ = taking_ = false;
  SetShare(pace);
}

void Forecast::Heard(std::uint32_t number, Tokens hits, double demand, Instant to, const Pace& pace, Instant now) {
  Charge();
  active_at_ = now;
  level_ -= hits;
  if (peers_.size() <= number) peers_.resize(number + 1);
  Peer& peer = peers_[number];
  if (to < peer.heard) return;    // late, and nothing new about its demand
  Replace(peer, demand);
  peer.heard = to;
  SetShare(pace);
}

// What was foretold of the peer until now is taken back; from now on it is to use `demand`.
void Forecast::Replace(Peer& peer, double demand) {
  const Tokens foretold = peer.demand * (earned_ - peer.since);
  level_ += foretold;
  foretold_ -= foretold;
  peers_demand_ += demand - peer.demand;
  peer.demand = demand;
  peer.since = earned_;
  if (peers_demand_ < kDemandMin / 2) peers_demand_ = foretold_ = 0;    // what is left are errors of rounding
}

// A bucket's own account of waste does not know when it was wasted, and pays for each peer's hits of the last moment
// out of what was wasted in the last two periods. Where hits are heard of so soon, there is the moment's waste, and
// what the bucket wasted because it had not heard yet of hits that were foretold.
Instant Forecast::ChargedAt(Tokens hits, Instant when, const Pace& pace, Instant now) {
  wasted_ = std::min(wasted_, pace.rate * Seconds(now - when) + foretold_);
  const Tokens paid = std::min({hits, wasted_, pace.rate * std::max(Seconds(full_at_ - when), 0.0)});
  wasted_ -= paid;
  return now - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(paid / pace.rate));
}

void Forecast::ForgetSilent(Duration since, Instant now) {
  if (peers_.empty()) return;
  if (++look_ >= peers_.size()) look_ = 0;
  Peer& peer = peers_[look_];
  if (peer.demand == 0 || now - peer.heard < since) return;
  Replace(peer, 0);
}

}    // namespace dthrottle
