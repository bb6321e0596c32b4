// What one host believes of one tag's bucket between reports: dead reckoning of the one bucket that all hosts share.
//
// Each host says now and then how fast the tag is asked for there (its demand), and earns the share p of that demand, p
// being what the bucket can give divided by all demands (share/pace.h has the formulas). Every host runs this
// same law on nearly the same bucket, so "my p times your demand" foretells what a peer serves, also while p changes;
// when a report of the peer comes, what was foretold is taken back and what was served is charged. A host reports early
// when it leaves what it let its peers foretell. Exactness in the long run does not rest on any of this: all hits come
// in reports.
//
// The law follows dead-reckoned shared buckets, with these departures. A host earns by the demand that it announced and
// not by the one that it sees, so its peers foretell it exactly until it speaks. It needs what it has earned only while
// the level is low (RationedBelow), because a client may have moved here whose demand elsewhere is still believed. What
// was earned and not used is forgotten beyond a few tokens, or all hosts together would have a second burst. The
// believed level counts with a margin where the tag is asked for less than its rate, because a wrong refusal is then
// likelier than a right one. A demand that a peer announces and does not bear out counts for the peer's part of the
// rate only, so a peer that lies costs the others no more than its part.
//
// Knows neither tags nor peers' names nor clocks. All of it takes constant time, but for a look at all peers, as a rule
// once in two periods.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/time.h"
#include "base/tokens.h"
#include "share/debit/word.h"
#include "share/forecast/demand_meter.h"
#include "share/forecast/flights.h"
#include "share/forecast/peers_demand.h"
#include "share/pace.h"
#include "share/report_budget.h"

namespace dthrottle {

class Forecast {
 public:
  // `level` is that of the tag's bucket, `unreported` are its hits of which nobody knows when they began.
  Forecast(Tokens level, Tokens unreported, Instant now);

  // ---- Deciding ----

  // Whether Step is worth its time.
  bool Stale(Instant now) const { return now - stepped_ >= kStep; }

  // Brings everything up to `now`. `bucket` is the level of the bucket that was charged exactly what was heard, above
  // the burst by what that bucket has wasted since it was charged.
  void Step(Tokens bucket, const Pace& pace, Instant now);

  // Whether what peers know and do allows that a query is served. Took or Missed has to follow.
  bool Admits(Cost cost) {
    if (IsTooMuchUnheard(cost)) [[unlikely]]
      return held_ = true, false;
    return Affords(cost);
  }
  // The same for a query that is not asked.
  bool WouldAdmit(Cost cost) const { return !IsTooMuchUnheard(cost) && Affords(cost); }
  // It was served. Returns whether a report is due.
  bool Took(Cost cost) {
    if (!taking_) taking_ = true, began_ = stepped_;
    served_ += cost;
    if (cost > 1) [[unlikely]]
      SetCost(cost);
    return Overdue();
  }
  // The same for tokens that workers have spent since then.
  bool Spent(Cost tokens, Instant since) {
    bool due = false;
    for (Cost i = 0; i < tokens; ++i) due = Took(1) || due;
    meter_.AskedSince(since);
    return due;
  }
  // Workers may have spent some that nobody knows of yet.
  void Awaits(Instant now) { meter_.Awaits(now); }
  // What was served since the call before, all of it at about stepped(), if this is called before each Step.
  Tokens TakeServed() { return Charge(), std::exchange(fresh_, 0); }
  Instant stepped() const { return stepped_; }
  // It was refused, or served without being recorded.
  void Missed(Cost cost) { meter_.Asked(cost); }
  // Tokens that were served here before have come back. Peers are to expect of this host only what is used.
  void CameBack(Tokens tokens, const Pace& pace);

  // ---- Reporting ----

  // Whether peers should hear of this host now, rather than with the next period's report.
  bool Due() const { return held_ || moved_ || Strays(); }

  // The tag's owner says that it is far from its limit (Pace::FarKept), so most news waits until the period is over.
  bool far() const { return far_; }

  // Whether a report would not follow the one before too closely.
  bool MayReport(Instant now) const { return now - said_at_ >= kReportGap; }

  // What a report says of this host's demand, in tokens/s.
  double announces(const Pace& pace) const;
  // All unreported hits go out now, with what it announces.
  void Report(const Pace& pace, Instant now);
  Instant reported_at() const { return said_at_; }
  // When the first hit since the latest report was served; without one, when that report went out. None: before the tag
  // was watched.
  std::optional<Instant> began() const { return !taking_ ? said_at_ : began_; }

  // Nothing to foretell here or elsewhere, and nobody asked lately.
  bool Idle(Duration since, Instant now) const { return !Active() && now - active_at_ >= since; }
  bool Active() const { return announced_ > 0 || peers_.demand() > 0; }
  Instant active_at() const { return active_at_; }

  // ---- Hearing ----

  // A peer said something. Its hits are charged so that refill pays for them that the bucket has wasted since they
  // happened, and pays once. REQUIRES: Step was called for `now`, word.when <= now.
  Heed Heard(const PeerWord& word, const Pace& pace, Instant now);

  // Tokens that a peer has served have come back.
  void PeerGaveBack(Tokens tokens, const Pace& pace);

  // Forgets the demand of peers that have not been heard for so long that it means nothing any more.
  // Hosts report every `period`.
  void ForgetSilent(Duration period, Instant now) { level_ += peers_.ForgetSilent(period, now); }

  // ---- Where a host owns the tag (share/owners) ----

  // What the owner tells that peer, about all other hosts.
  OwnersWord WordFor(std::uint32_t peer) const;
  // The owner stated this about a bucket that contains every hit of this host but `unreported`. It holds until the
  // owner states something else. `bucket` is the level with those hits.
  void OwnerSaid(Tokens bucket, Tokens unreported, const OwnersWord& word, const Pace& pace, Instant now);
  // This host owns the tag: the bucket is that of the fleet, and peers will say what they ask for.
  void OwnedHere(Tokens bucket, const Pace& pace);
  bool hears_owner() const { return owner_said_.has_value(); }
  // What all hosts of this site ask for, tokens/s, and the integral of p (s): other sites foretell the product.
  double demand_here() const { return std::max(announced_ + peers_.demand() - peers_.abroad(), 0.0); }
  double earned() const { return peers_.earned(); }
  // Forgets what the owner said, if nobody has asked here for `since`.
  void ForgetOwner(Duration since, Instant now);

  // ---- For people ----

  bool held() const { return held_; }                      // a query was refused because of U, since the latest report
  Tokens level() const { return level_ - served_; }        // of the one bucket, as this host believes
  double share() const { return share_; }                  // p
  double demand() const { return announced_; }             // tokens/s
  double peers_demand() const { return peers_.demand(); }    // as it counts, which may be less than announced

 private:
  static constexpr Duration kStep = std::chrono::milliseconds(1);
  static constexpr Duration kReportGap = std::chrono::milliseconds(5);

  bool IsTooMuchUnheard(Cost cost) const {
    const double tokens = cost, unheard = unheard_ + served_;
    return unheard + tokens > unheard_max_ && unheard > 0;
  }
  bool Affords(Cost cost) const {
    const double tokens = cost;
    return rationed_ ? credit_ - served_ >= std::min(tokens, 1.0) : level_ + margin_ - served_ >= tokens;
  }
  Tokens Pay(Tokens most, Tokens wasted_max, const PeerWord& word, const Pace& pace);
  // Tokens that this host has served beyond what its peers foretell; negative: short of it.
  Tokens deviation() const { return unheard_ + served_ - flying_.sum(); }
  bool Overdue() const { return unheard_ + served_ >= due_from_; }
  bool Strays() const { return Overdue() || deviation() <= -threshold_; }

  // Charges what was served.
  void Charge() {
    level_ -= served_;
    credit_ -= served_;
    unheard_ += served_;
    fresh_ += served_;
    meter_.Asked(served_);
    served_ = 0;
  }

  void SetCost(Tokens cost) { cost_ = std::max(cost_, cost), usual_cost_ = std::max(usual_cost_, cost); }
  void SetShare(const Pace& pace);
  // While hosts are not rationed they pay with credit as long as there is some. Not looked at with each query.
  void SettleCredit() { credit_ = rationed_ ? credit_ : std::max(credit_, 0.0); }
  void SetThreshold(const Pace& pace);

  Tokens served_ = 0;        // and not yet charged to the following, which most queries do not touch
  Tokens cost_ = 1;          // the largest cost of a query since the latest report; 1 at least
  Tokens fresh_ = 0;         // of what was charged, not taken
  Tokens usual_cost_ = 1;    // the same since the report before

  // The law. Rates in tokens/s, times in seconds.
  Tokens level_;         // of the one bucket
  Tokens margin_ = 0;    // added to it wherever it decides
  Tokens credit_ = 1;    // earned and not used; below 0 is 0 unless rationed
  double share_ = 1;     // p: of each demand, what is served
  double demand_ = 0;    // announced, and heard
  double announced_ = 0;
  bool rationed_ = false;    // p < 1, the level is low, and somebody else asks too
  Tokens unheard_;           // served, and neither foretold nor heard
  Tokens unheard_max_ = 2;
  Flights flying_;    // of it, reported just now

  // Reports
  DemandMeter meter_;
  ReportBudget budget_;
  Tokens delta_ = 1;    // threshold after the latest report, of a tag that is not far from its limit
  Tokens threshold_ = 1;
  Tokens due_from_ = 1;    // what unheard_ is when a report is due
  bool far_ = false;       // from the limit
  bool moved_ = false;     // demand has, or its announcement is about to be forgotten
  bool held_ = false;      // a query was refused because of U
  bool taking_;            // something since the latest report
  Instant said_at_, stepped_, active_at_;
  std::optional<Instant> began_;
  // Refill that the bucket wasted and that has not paid for anything; and when it was full for the last time.
  Tokens wasted_ = 0;
  Instant full_at_;

  PeersDemand peers_;
  std::optional<Instant> owner_said_;    // latest
};

}    // namespace dthrottle
