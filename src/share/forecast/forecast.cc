#include "share/forecast/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/math.h"

namespace dthrottle {

namespace {

// All found by simulation over the workloads of test/bench/accuracy_bench.cc, unless there is a reason beside them.
constexpr double kDemandMin = 0.5;       // tokens/s; less is not announced
constexpr double kMoved = 1;             // a demand has moved if it makes so many thresholds in kMovedWithin
constexpr double kMovedNoise = 3;        // and exceeds so many standard deviations of its measurement
constexpr double kRefresh = 2;           // periods after which a demand is announced again (a peer forgets it after 3)
constexpr double kTrust = 4;             // s in which the level follows the bucket's
constexpr double kLinear = 0.005;        // s in which p is as good as constant
constexpr Duration kLookForSilent = std::chrono::milliseconds(100);    // the least time between looks at all peers

// A demand counts in full if hits bear out this part of it.
constexpr double kBorneOut = 0.8;
constexpr double kCostMax = 0.5;         // of the rate, without any hits
constexpr double kBornePeriods = 2;      // how long hits bear a demand out; reports of a tag are no rarer
constexpr double kMissingPeriods = 4;    // periods of the rate; a demand is forgotten sooner
constexpr double kChanged = 2;           // times
constexpr double kShareMin = 0.02;
constexpr double kEarnedMin = 1e-3;    // s; hits are divided by no less

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

  const double demand = demand_ + peers_demand_;
  const double earned = dt <= kLinear ? share_ * dt : Earned(pace, demand, level_ + margin_, pace.Target(delta_), dt);
  earned_ += earned;
  foretold_ += peers_demand_ * earned;
  unheard_ -= demand_ * earned;
  // What was earned while there was plenty is kept, for a burst finds hosts that do not know of each other's demand.
  SettleCredit();
  credit_ = std::max(credit_, std::min(credit_ + demand_ * earned, usual_cost_ * pace.CreditMax(share_ >= 1)));
  if (flying_ != 0 && now - flown_at_ >= kHearing) {
    unheard_ -= flying_;
    flying_ = 0;
  }
  level_ = std::min(level_ + pace.rate * dt - peers_demand_ * earned, bucket);
  // The bucket lets wasted refill pay for what was heard late, and errs for the client there; but it is what in the end
  // is right, and the first to know of a pardon.
  const Tokens missed = bucket - foretold_ - level_;
  if (missed > 0) level_ += missed * (bucket >= pace.burst ? 1 : dt / (kTrust + dt));
  // A level that is too high follows the bucket too. Two hosts that heard of the first hits at different times would
  // never agree otherwise. The bucket says nothing where peers are foretold to have served a burst: it wastes refill.
  const Tokens beyond = -missed - std::min(wasted_, std::max(foretold_, 0.0));
  if (beyond > 0 && foretold_ < pace.burst) level_ -= beyond * dt / (kTrust + dt);
  if (now - said_at_ >= kSomeHear) demand_ = announced_;
  SetShare(pace);

  unheard_max_ = pace.unheard_max;
  budget_.Step(pace, dt);
  SetThreshold(pace);
  const double change = meter_.seen() - announced_, since = Seconds(now - said_at_);
  const double variance = usual_cost_ * std::max(meter_.moved(), announced_) / (2 * pace.demand_memory());
  const bool foretelling = announced_ + peers_demand_ > 0;
  moved_ = (foretelling && std::abs(change) * kMovedWithin >= kMoved * threshold_ &&
            Square(change) > Square(kMovedNoise) * variance) ||
           (announced_ > 0 && since >= (far_ ? kBelievedPeriods : kRefresh) * pace.period);
}

void Forecast::SetShare(const Pace& pace) {
  const double demand = demand_ + peers_demand_;
  margin_ = Margin(pace, {demand, foretold_, delta_, usual_cost_});
  share_ = ShareOf(pace, demand, level_ + margin_, pace.Target(delta_));
  SettleCredit();
  rationed_ = share_ < 1 && demand_ > 0 && peers_demand_ > 0;
}

// A report is due one query before U is reached, or that query would have to wait for it.
void Forecast::SetThreshold(const Pace& pace) {
  const Tokens kept = owner_said_ ? pace.FarKept(level_) : 0;
  far_ = kept > 0;
  threshold_ = std::max(budget_.Threshold(pace), kept);
  due_from_ = std::min(threshold_, std::max(pace.unheard_max - std::max(cost_, usual_cost_), 1.0)) + flying_;
}

// A query that makes a report due has just raised the mean, by its cost divided by the memory, and peers use what is
// announced until the next report; before a Poisson query the mean is right. A query counts as one token here, or 64
// hosts whose queries cost 5 announce half as much again as they are asked for. The one token stays in, because a
// demand that begins is then known sooner.
double Forecast::announces(const Pace& pace) const {
  const Tokens cost = std::max(cost_, usual_cost_), risen = Overdue() ? (cost - 1) / pace.demand_memory() : 0;
  const double demand = meter_.seen() - risen;
  return demand >= kDemandMin ? demand : 0;
}

void Forecast::Report(const Pace& pace, Instant now) {
  Charge();
  announced_ = announces(pace);
  budget_.Sent(pace, Strays());
  // What was reported shortly before may still be on its way too.
  flying_ = std::max(unheard_, 0.0);
  unheard_ = flying_;
  usual_cost_ = std::exchange(cost_, 1);
  SetThreshold(pace);
  delta_ = budget_.Threshold(pace);
  flown_at_ = said_at_ = now;
  moved_ = held_ = taking_ = false;
  SetShare(pace);
}

Heed Forecast::Heard(const PeerWord& word, const Pace& pace, Instant now) {
  Heed heed = Heed::AsStated(word);
  Charge();
  active_at_ = now;
  std::vector<Peer>& all = word.abroad ? sites_ : peers_;
  if (all.size() <= word.peer) all.resize(word.peer + 1);
  Peer& peer = all[word.peer];
  peer.period = word.period;
  // Hits beyond what was foretold are what made the peer report. They are new, so the pause before them does not pay
  // for them. A peer that announces nothing is asked for less than kDemandMin.
  const double waited = std::max(Seconds(word.to - std::max(peer.heard, word.when)), 0.0);
  const Tokens unannounced = peer.demand == 0 ? kDemandMin * waited : 0;
  heed.paid = Pay(peer.Foretold(earned_) + unannounced, std::max(foretold_, 0.0) + unannounced, word, pace);
  level_ -= word.hits;
  if (word.to < peer.heard) {    // late, and nothing new about its demand
    peer.missing = std::max(peer.missing - word.hits, 0.0);
    return heed;
  }
  const double believed = Believed(peer, word, pace);
  Place(peer, word, heed);
  heed.believed = believed >= word.demand;
  peer.heard = word.to;
  const auto period = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(pace.period));
  const Instant until = BelievedUntil(peer, word.abroad, period);
  Replace(peer, until > now ? believed : 0, word.abroad);
  if (peer.demand > 0) silent_from_ = std::min(silent_from_, until);
  SetShare(pace);
  return heed;
}

// A peer that announces a demand takes that share of the others' tokens until it reports again, so a demand counts only
// as far as hits bear it out: hits divided by the p under which they were served. What was foretold and not served is
// missing. As long as less than U is missing, the hits of this very report bear the demand out too, which is how a new
// demand begins. A peer that serves nothing costs the others U once, and its part of the rate.
double Forecast::Believed(Peer& peer, const PeerWord& word, const Pace& pace) const {
  const double since = std::max(Seconds(word.to - peer.heard), 0.0);
  const double took = std::max(Seconds(word.to - word.when), Seconds(kSomeHear));
  // While the peer announced nothing, only the time of its hits counts.
  const double earned = peer.demand == 0 ? std::min(earned_ - peer.since, took * share_) : earned_ - peer.since;
  const double keep = 1 / (1 + since / (kBornePeriods * pace.period));
  peer.hits = keep * peer.hits + word.hits;
  peer.earned = keep * peer.earned + earned;
  peer.missing = std::clamp(peer.missing + kBorneOut * peer.Foretold(earned_) - word.hits - pace.part() * since, 0.0,
                            pace.unheard_max + kMissingPeriods * pace.period * pace.rate);
  const double room = std::max(1 - peer.missing / pace.unheard_max, 0.0);
  const double began = room * word.hits / std::max(Seconds(kHearing) * share_, kEarnedMin);
  // Without hits: what takes no more than its cost of the rate beside the demand of all others.
  const double cost =
      std::min(pace.part() + room * pace.unheard_max / (kBornePeriods * pace.period), kCostMax * pace.rate);
  const double others = demand_ + peers_demand_ - peer.demand;
  const double most = peer.hits / (kBorneOut * std::max(peer.earned, kEarnedMin)) + began +
                      cost * std::max(others / (pace.rate - cost), 1.0);
  return std::min(word.demand, most);
}

// Hits come as fast as the demand that is announced with them, or that was before, rather than evenly over an interval
// in which demand begins or ends.
void Forecast::Place(const Peer& peer, const PeerWord& word, Heed& heed) const {
  const double took = Seconds(word.to - word.when), passed = Seconds(word.to - peer.heard);
  const double share = passed > 0 ? std::clamp((earned_ - peer.since) / passed, kShareMin, 1.0) : 1;
  const Tokens others = word.hits - 1;
  const auto lasts = [&](double demand) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(others / (share * demand)));
  };
  if (others > 0 && word.demand > kChanged * peer.demand && share * word.demand * took > others) {
    heed.hits_from = word.to - lasts(word.demand);
  } else if (others > 0 && peer.demand > kChanged * word.demand && share * peer.demand * took > others) {
    heed.hits_to = word.when + lasts(peer.demand);
  }
  heed.refused = word.hits * (1 / share - 1);
}

// What was foretold of the peer until now is taken back; from now on it is to use `demand`.
void Forecast::Replace(Peer& peer, double demand, bool abroad) {
  const Tokens foretold = peer.Foretold(earned_);
  level_ += foretold;
  foretold_ -= foretold;
  peers_demand_ += demand - peer.demand;
  if (abroad) sites_demand_ += demand - peer.demand;
  peer.demand = demand;
  peer.since = earned_;
  if (peers_demand_ < kDemandMin / 2)
    peers_demand_ = sites_demand_ = foretold_ = 0;    // what is left are errors of rounding
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
  const double its = peer < peers_.size() ? peers_[peer].demand : 0;
  const Tokens foretold = peer < peers_.size() ? peers_[peer].Foretold(earned_) : 0;
  return {std::max(demand_ + peers_demand_ - its, 0.0), level() + foretold};
}

// Reports of this host that were on their way have come, so nothing is unheard but what was served since.
void Forecast::OwnerSaid(Tokens bucket, Tokens unreported, const OwnersWord& word, const Pace& pace, Instant now) {
  Charge();
  unheard_ -= std::exchange(flying_, 0);
  level_ = std::min(word.level - unreported, bucket);
  foretold_ = bucket - level_;
  peers_demand_ = word.demand < kDemandMin / 2 ? 0 : word.demand;
  owner_said_ = now;
  SetShare(pace);
}

void Forecast::OwnedHere(Tokens bucket, const Pace& pace) {
  Charge();
  unheard_ -= std::exchange(flying_, 0);
  level_ = bucket;
  foretold_ = 0;
  if (owner_said_) peers_demand_ = sites_demand_ = 0;
  owner_said_.reset();
  SetShare(pace);
}

void Forecast::ForgetOwner(Duration since, Instant now) {
  if (!owner_said_ || now - std::max(*owner_said_, active_at_) < since) return;
  owner_said_.reset();
  peers_demand_ = foretold_ = 0;
}

Instant Forecast::BelievedUntil(const Peer& peer, bool abroad, Duration period) {
  const Duration here = kBelievedPeriods * period;
  // A site is believed until something is assumed in its place (share/sites).
  return peer.heard + (abroad ? std::max<Duration>(here, (kBelievedPeriods + 1) * peer.period) : here);
}

// Looks are some time apart, so a peer that says old things again and again does not cause one each time.
void Forecast::LookForSilent(Duration period, Instant now) {
  if (now < looked_for_silent_ + kLookForSilent) return;
  looked_for_silent_ = now;
  silent_from_ = Instant::max();
  const auto look = [&](Peer& peer, bool abroad) {
    if (peer.demand == 0) return;
    const Instant until = BelievedUntil(peer, abroad, period);
    if (until <= now) return Replace(peer, 0, abroad);
    silent_from_ = std::min(silent_from_, until);
  };
  for (Peer& peer : peers_) look(peer, false);
  for (Peer& peer : sites_) look(peer, true);
}

}    // namespace dthrottle
