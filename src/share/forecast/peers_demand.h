// What the peers of one tag ask for, and what they are foretold to have served since they last said something: the share p
// of that demand. For Forecast, which has the law.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "base/tokens.h"
#include "share/debit/word.h"
#include "share/pace.h"

namespace dthrottle {

class PeersDemand {
 public:
  static constexpr double kMin = 0.5;    // tokens/s; less is not announced
  // The time after which a report has been heard by all, and by some. Where the wire is slower, U can be exceeded.
  static constexpr Duration kHearing = std::chrono::milliseconds(20), kSomeHear = std::chrono::milliseconds(10);

  struct Peer {
    double demand = 0;    // as it counts, tokens/s
    double since = 0;     // earned() when it said so
    Instant heard{};      // end of the interval of its latest report
    // What bears its demand out: hits and the p they were served at, both aged, and what was foretold and not served.
    Tokens hits = 0;
    double earned = 0;
    Tokens missing = 0;
    Duration period{};    // of its reports; 0: as this host's
  };

  // This host's own demand that its peers know of, tokens/s, and p.
  struct Here {
    double demand, share;
  };

  double demand() const { return all_; }             // of all, as it counts, which may be less than announced; tokens/s
  double abroad() const { return abroad_; }          // of it, other sites'
  double earned() const { return earned_; }          // integral of p, s
  Tokens foretold() const { return foretold_; }      // to have been served by peers, and not reported yet
  Tokens Foretold(const Peer& peer) const { return peer.demand * (earned_ - peer.since); }

  // So much of each demand was served.
  void Earn(double earned) {
    earned_ += earned;
    foretold_ += all_ * earned;
  }

  // The peer or site that says so.
  Peer& Of(const PeerWord& word);
  // Null: it has said nothing.
  const Peer* Find(std::uint32_t peer) const { return peer < peers_.size() ? &peers_[peer] : nullptr; }

  // It said something that is not older than what it said before. Returns what was foretold of it until now, and says in
  // `heed` whether its demand is believed and when its hits were.
  Tokens Hear(Peer& peer, const PeerWord& word, const Here& here, const Pace& pace, Instant now, Heed& heed);

  // Forgets the demand of peers that have not been heard for so long that it means nothing any more. Hosts report every
  // `period`. Returns what was foretold of them.
  Tokens ForgetSilent(Duration period, Instant now) { return now < silent_from_ ? 0 : LookForSilent(period, now); }

  // The owner of the tag states both, for all peers together.
  void Assume(double demand, Tokens foretold) { all_ = demand, foretold_ = foretold; }
  void Forget() { all_ = abroad_ = 0; }

 private:
  double Believed(Peer& peer, const PeerWord& word, const Here& here, const Pace& pace) const;
  void Place(const Peer& peer, const PeerWord& word, Heed& heed) const;
  Tokens Replace(Peer& peer, double demand, bool abroad);
  Tokens LookForSilent(Duration period, Instant now);
  static Instant BelievedUntil(const Peer& peer, bool abroad, Duration period);

  double earned_ = 0, all_ = 0, abroad_ = 0;
  Tokens foretold_ = 0;
  std::vector<Peer> peers_, sites_;         // by number
  Instant silent_from_ = Instant::max();    // no peer's demand is forgotten before
  Instant looked_for_silent_{};             // at all of them
};

}    // namespace dthrottle
