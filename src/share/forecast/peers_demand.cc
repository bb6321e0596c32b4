#include "share/forecast/peers_demand.h"

#include <algorithm>

namespace dthrottle {

namespace {

// All found by simulation over the workloads of test/bench/accuracy_bench.cc, unless there is a reason beside them.
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

PeersDemand::Peer& PeersDemand::Of(const PeerWord& word) {
  std::vector<Peer>& all = word.abroad ? sites_ : peers_;
  if (all.size() <= word.peer) all.resize(word.peer + 1);
  Peer& peer = all[word.peer];
  peer.period = word.period;
  return peer;
}

Tokens PeersDemand::Hear(Peer& peer, const PeerWord& word, const Here& here, const Pace& pace, Instant now, Heed& heed) {
  const double believed = Believed(peer, word, here, pace);
  Place(peer, word, heed);
  heed.believed = believed >= word.demand;
  peer.heard = word.to;
  const Duration period = DurationOf(pace.period);
  const Instant until = BelievedUntil(peer, word.abroad, period);
  const Tokens foretold = Replace(peer, until > now ? believed : 0, word.abroad);
  if (peer.demand > 0) silent_from_ = std::min(silent_from_, until);
  return foretold;
}

// A peer that announces a demand takes that share of the others' tokens until it reports again, so a demand counts only
// as far as hits bear it out: hits divided by the p under which they were served. What was foretold and not served is
// missing. As long as less than U is missing, the hits of this very report bear the demand out too, which is how a new
// demand begins. A peer that serves nothing costs the others U once, and its part of the rate.
double PeersDemand::Believed(Peer& peer, const PeerWord& word, const Here& here, const Pace& pace) const {
  const double since = std::max(Seconds(word.to - peer.heard), 0.0);
  const double took = std::max(Seconds(word.to - word.when), Seconds(kSomeHear));
  // While the peer announced nothing, only the time of its hits counts.
  const double earned = peer.demand == 0 ? std::min(earned_ - peer.since, took * here.share) : earned_ - peer.since;
  const double keep = 1 / (1 + since / (kBornePeriods * pace.period));
  peer.hits = keep * peer.hits + word.hits;
  peer.earned = keep * peer.earned + earned;
  peer.missing = std::clamp(peer.missing + kBorneOut * Foretold(peer) - word.hits - pace.part() * since, 0.0,
                            pace.unheard_max + kMissingPeriods * pace.period * pace.rate);
  const double room = std::max(1 - peer.missing / pace.unheard_max, 0.0);
  const double began = room * word.hits / std::max(Seconds(kHearing) * here.share, kEarnedMin);
  // Without hits: what takes no more than its cost of the rate beside the demand of all others.
  const double cost =
      std::min(pace.part() + room * pace.unheard_max / (kBornePeriods * pace.period), kCostMax * pace.rate);
  const double others = here.demand + all_ - peer.demand;
  const double most = peer.hits / (kBorneOut * std::max(peer.earned, kEarnedMin)) + began +
                      cost * std::max(others / (pace.rate - cost), 1.0);
  return std::min(word.demand, most);
}

// Hits come as fast as the demand that is announced with them, or that was before, rather than evenly over an interval
// in which demand begins or ends.
void PeersDemand::Place(const Peer& peer, const PeerWord& word, Heed& heed) const {
  const double took = Seconds(word.to - word.when), passed = Seconds(word.to - peer.heard);
  const double share = passed > 0 ? std::clamp((earned_ - peer.since) / passed, kShareMin, 1.0) : 1;
  const Tokens others = word.hits - 1;
  const auto lasts = [&](double demand) { return DurationOf(others / (share * demand)); };
  if (others > 0 && word.demand > kChanged * peer.demand && share * word.demand * took > others) {
    heed.hits_from = word.to - lasts(word.demand);
  } else if (others > 0 && peer.demand > kChanged * word.demand && share * peer.demand * took > others) {
    heed.hits_to = word.when + lasts(peer.demand);
  }
  heed.refused = word.hits * (1 / share - 1);
}

// What was foretold of the peer until now is taken back; from now on it is to use `demand`.
Tokens PeersDemand::Replace(Peer& peer, double demand, bool abroad) {
  const Tokens foretold = Foretold(peer);
  foretold_ -= foretold;
  all_ += demand - peer.demand;
  if (abroad) abroad_ += demand - peer.demand;
  peer.demand = demand;
  peer.since = earned_;
  if (all_ < kMin / 2) all_ = abroad_ = foretold_ = 0;    // what is left are errors of rounding
  return foretold;
}

Instant PeersDemand::BelievedUntil(const Peer& peer, bool abroad, Duration period) {
  const Duration here = kBelievedPeriods * period;
  // A site is believed until something is assumed in its place (share/sites).
  return peer.heard + (abroad ? std::max<Duration>(here, (kBelievedPeriods + 1) * peer.period) : here);
}

// Looks are some time apart, so a peer that says old things again and again does not cause one each time.
Tokens PeersDemand::LookForSilent(Duration period, Instant now) {
  if (now < looked_for_silent_ + kLookForSilent) return 0;
  looked_for_silent_ = now;
  silent_from_ = Instant::max();
  Tokens foretold = 0;
  const auto look = [&](Peer& peer, bool abroad) {
    if (peer.demand == 0) return;
    const Instant until = BelievedUntil(peer, abroad, period);
    if (until <= now) {
      foretold += Replace(peer, 0, abroad);
    } else {
      silent_from_ = std::min(silent_from_, until);
    }
  };
  for (Peer& peer : peers_) look(peer, false);
  for (Peer& peer : sites_) look(peer, true);
  return foretold;
}

}    // namespace dthrottle
