// What one host believes of one tag's bucket between reports: dead reckoning of the one bucket that all hosts share.
//
// Each host says now and then how fast the tag is asked for there (its demand), and earns the share p of that demand, p
// being what the bucket can give divided by all demands. As every host runs this same law on nearly the same bucket,
// "my p times your demand" foretells what a peer serves, also while p changes; when a report of it comes, what was
// foretold is taken back and what was served is charged. A host reports early when it leaves what it let its peers
// foretell. Exactness in the long run does not rest on any of this: all hits come in reports.
//
// From dead-reckoned shared buckets, with three departures, each of which halves the error somewhere: a host earns by
// the demand that it announced and not by the one that it sees, so its peers foretell it exactly until it speaks;
// demand is measured by EWMA and replaced where a count is too unlikely under it, so that silence is noticed after some
// nine queries that did not come, whatever the rate; what has been earned and not used is forgotten beyond a few
// tokens, the fewer the more hosts there are, or all of them together would have a second burst.
//
// Knows neither tags nor peers' names nor clocks. All of it takes constant time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// The limit that a forecast is for, and the fleet.
struct Pace {
  double rate;    // tokens/s
  Tokens burst;
  Tokens unheard_max;      // U: most that a host serves that its peers can neither have foretold nor heard of
  double root_hosts;       // square root of the number of hosts, this one included
  double period;           // s, between reports: of one tag, as many go out in the long run and no more
  bool foretold = true;    // or reported early only
};

class Forecast {
 public:
  // Of a tag that was `unreported` when it came to be watched. `level` is its bucket's.
  Forecast(Tokens level, Tokens unreported, Instant now);

  // ---- Deciding ----

  // Whether Step is worth its time.
  bool Stale(Instant now) const { return now - stepped_ >= kStep; }

  // Brings everything up to `now`. `bucket` is the level of the bucket that was charged exactly what was heard.
  void Step(Tokens bucket, const Pace& pace, Instant now);

  // Whether a query may be served as far as the peers are concerned. Then one of the next two is to be called.
  bool Admits(Cost cost) {
    const double tokens = cost, unheard = unheard_ + served_;
    if (unheard + tokens > unheard_max_ && unheard > 0) [[unlikely]]
      return held_ = true, false;
    return rationed_ ? credit_ - served_ >= std::min(tokens, 1.0) : level_ - served_ >= tokens;
  }
  // Returns whether that makes a report due.
  bool Took(Cost cost) {
    if (!taking_) taking_ = true, began_ = stepped_;
    served_ += cost;
    return unheard_ + served_ >= due_from_;
  }
  // It was refused, or served without being recorded.
  void Missed(Cost cost) { asked_ += cost; }

  // ---- Reporting ----

  // Whether peers should hear of this host now, rather than with the next period's report.
  bool Due() const { return held_ || moved_ || Strays(); }

  // Whether a report would not follow the one before too closely.
  bool MayReport(Instant now) const { return now - said_at_ >= kReportGap; }

  // What a report says of this host's demand, in tokens/s.
  double announces() const;
  // All unreported hits go out now; with what it announces, or without if nobody is to foretell anything.
  void Report(const Pace& pace, bool foretold, Instant now);
  Instant reported_at() const { return said_at_; }
  // When the first hit since then was; the report if there was none.
  Instant began() const { return taking_ ? began_ : said_at_; }

  // Nothing to foretell here or elsewhere, and nobody asked lately.
  bool Idle(Duration since, Instant now) const { return !Active() && now - active_at_ >= since; }
  bool Active() const { return announced_ > 0 || peers_demand_ > 0; }
  Instant active_at() const { return active_at_; }

  // ---- Hearing ----

  // A peer, by its number, served `hits` until `to`, and announced `demand`. REQUIRES: Step was called for `now`.
  void Heard(std::uint32_t peer, Tokens hits, double demand, Instant to, const Pace& pace, Instant now);

  // As of when `hits` that happened at `when` are to be charged to the bucket, so that refill pays for them that it has
  // wasted since, and pays once. REQUIRES: Step was called for `now`, when <= now.
  Instant ChargedAt(Tokens hits, Instant when, const Pace& pace, Instant now);

  // Looks whether one of the peers, in turns, has not been heard for so long that its demand means nothing any more.
  void ForgetSilent(Duration since, Instant now);

  // ---- For people ----

  bool held() const { return held_; }                  // a query was refused because of U, since the latest report
  Tokens level() const { return level_ - served_; }    // of the one bucket, as this host believes
  double share() const { return share_; }              // p
  double demand() const { return announced_; }         // tokens/s
  double peers_demand() const { return peers_demand_; }

  // The time after which a report has been heard by all, and by some. Where the wire is slower, U can be exceeded.
  static constexpr Duration kHearing = std::chrono::milliseconds(20), kSomeHear = std::chrono::milliseconds(10);

 private:
  static constexpr Duration kStep = std::chrono::milliseconds(1);
  static constexpr Duration kReportGap = std::chrono::milliseconds(5);

  struct Peer {
    double demand = 0;    // tokens/s
    double since = 0;     // earned_ when it said so
    Instant heard{};      // end of the interval of its latest report
  };

  void Replace(Peer& peer, double demand);
  // Tokens that this host has served beyond what its peers foretell; negative: short of it.
  Tokens deviation() const { return unheard_ + served_ - flying_; }
  bool Strays() const { return unheard_ + served_ >= due_from_ || deviation() <= -threshold_; }

  // Charges what was served.
  void Charge() {
    level_ -= served_;
    credit_ -= served_;
    unheard_ += served_;
    asked_ += served_;
    served_ = 0;
  }

  void MeasureDemand(double dt, Instant asked_by, Instant now);
  double Earned(double dt, const Pace& pace) const;
  void SetShare(const Pace& pace);
  // Who is not rationed pays with credit as long as there is some. Not looked at with each query.
  void SettleCredit() { credit_ = rationed_ ? credit_ : std::max(credit_, 0.0); }
  Tokens Target(const Pace& pace) const;
  void SetThreshold(const Pace& pace);

  Tokens served_ = 0;    // and not yet charged to the following, which most queries do not touch

  // The law. Rates in tokens/s, times in seconds.
  Tokens level_;         // of the one bucket
  Tokens credit_ = 1;    // earned and not used; below 0 is 0 unless rationed
  double share_ = 1;     // p: of each demand, what is served
  double earned_ = 0;    // integral of p
  double demand_ = 0;    // announced, and heard
  double announced_ = 0;
  double peers_demand_ = 0;
  Tokens foretold_ = 0;      // to have been served by peers, and not reported yet
  bool rationed_ = false;    // p < 1, and somebody else asks too
  Tokens unheard_;           // served, and neither foretold nor heard
  Tokens unheard_max_ = 2;
  Tokens flying_ = 0;    // of it, reported just now

  // Demand as this host sees it
  Tokens asked_ = 0;         // since stepped_
  double seen_ = 0;          // EWMA, tokens/s
  double block_seen_ = 0;    // the same when the block began
  Tokens block_ = 0;         // asked since then
  Instant asked_at_;         // the latest query
  Instant block_at_;

  // Reports
  double saved_;        // entries of one a period that were not sent; negative: sent too many
  double base_;         // logarithm of the threshold when there are none
  Tokens delta_ = 1;    // threshold after the latest report
  Tokens threshold_ = 1;
  Tokens due_from_ = 1;    // what unheard_ is when it strays: the threshold, or U
  bool moved_ = false;     // demand has, or its announcement is about to be forgotten
  bool held_ = false;      // a query was refused because of U
  bool taking_ = false;    // something since the latest report
  Instant said_at_, began_, flown_at_{}, stepped_, active_at_;
  // Refill that the bucket wasted and that has not paid for anything; and when it was full for the last time.
  Tokens wasted_ = 0;
  Instant full_at_;

  std::vector<Peer> peers_;    // by number
  std::uint32_t look_ = 0;     // of ForgetSilent
};

}    // namespace dthrottle
