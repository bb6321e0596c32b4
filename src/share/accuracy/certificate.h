// How accurate limits are that hosts share, as far as this one can know: what reports reveal is held against one bucket
// for all.
//
// A certificate looks at the tags that peers' hits have drained, a bounded number of them. It keeps what all hosts
// served of each, and what they refused, for as long as reports take; then it replays one bucket for all
// (retrospect.h). What hosts served beyond that bucket in a second is over-admitted, what they served less is
// under-admitted.
//
// Hits, each once, and this host's refusals are exact. Where in its interval a peer's hit was, and what peers refused,
// are not. Under forecast all hosts serve the same part p of what they are asked, so a peer that served n refused
// n (1 / p - 1), and evenly; otherwise refusals elsewhere are taken to be to hits as they are here, and a peer that
// refuses serves in one go and then nothing, which makes the second of its hits unsure. Hits that come too late for the
// replay, and those of a tag for which there is no room, count as over-admitted as far as they make debt.
//
// Sums are aged exponentially: of what was counted kMemory ago a 1/e-th is left. That takes two numbers a sum, where a
// ring of seconds would take hundreds, and an alert begins and ends without steps.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "base/tokens.h"
#include "share/accuracy/retrospect.h"

namespace dthrottle {

// ---- What the theory allows ----

struct BoundTerms {
  Tokens burst;
  double rate;                                         // tokens/s
  std::optional<Tokens> unheard_max;                   // U, if hosts foretell each other
  Duration period;                                     // between reports
  Duration hearing = std::chrono::milliseconds(20);    // that a report takes, if hosts foretell each other
};

// A peer, as its reports show it.
struct PeerAge {
  Duration heard_ago{};    // its latest report
  Duration delay{};        // of its hits when they came
};

// The most that hosts together serve of a tag above burst + rate x t, in any stretch of time t:
//
//   the sum over peers of  burst + rate x (max(period, heard_ago) + delay),  and once  2 x rate x period
//
// Each host serves no more than burst + rate x t of its own bucket, to which a peer's hits are charged when they are
// that old at most; what wasted refill pays for late hits, which is no more than that of two periods (bucket/waste.h),
// comes on top. N hosts that hear each other in time are within (N - 1) (B + r (T + d)) + 2 r T; one that was not heard
// lately is bounded by how long that is. Under forecast a peer has no more than U, and as much again for each `hearing`
// that its reports take, as long as it is heard once in two periods.
Tokens ExcessBound(const BoundTerms& terms, std::span<const PeerAge> peers);

// The part of that sum for one peer, as long as it is not foretold.
Tokens ExcessOfPeer(const BoundTerms& terms, const PeerAge& peer);

// ---- The account ----

// The account of one rule. Sums are aged, except for the last two.
struct RuleAccuracy {
  Tokens served = 0;    // by all hosts, as far as they were heard
  Deviation observed;
  Tokens debt = 0;     // of the tag that owed most, at the last look
  Tokens ahead = 0;    // of the tag that was most ahead, at the last look
  bool alarmed = false;
  Deviation ever;    // since the start

  // In % of what one bucket for all would have served; 0 where nothing was. The first two may be off by the third.
  double over_percent() const { return Percent(observed.over); }
  double under_percent() const { return Percent(observed.under); }
  double blurred_percent() const { return Percent(observed.blurred); }

 private:
  double Percent(Tokens part) const;
};

// A tag as it stands.
struct TagLook {
  std::size_t counter = 0;    // of its rule
  Tokens level = 0, burst = 0;
  double rate = 0;    // tokens/s
};

// The account of one tag.
struct TagAccuracy {
  KeptTag kept;
  TagLook look;          // the latest
  Tokens ahead = 0;      // of one bucket, some periods ago
  Deviation observed;    // aged

  Tokens debt() const { return std::max(-look.level, 0.0); }
};

// An alert that began or is over.
struct AccuracyNews {
  std::size_t rule;    // its number
  bool began;
  double over_percent, tolerance_percent;
};

class Certificate {
 public:
  static constexpr std::size_t kTags = 256, kWays = 4;
  static constexpr Duration kMemory = std::chrono::minutes(1);
  static constexpr double kMemoryLooks = 10;    // or so many looks, if that is longer
  static constexpr Duration kLookEvery = std::chrono::seconds(1);
  static constexpr Tokens kAlertMin = 1;       // over-admitted, or there is no alert
  static constexpr double kAlertEnds = 0.8;    // of the tolerance

  explicit Certificate(std::size_t counters) : rules_(counters), newly_(counters), served_before_(counters) {}

  // ---- With the shard of `hash` locked ----

  // A query was refused. Any thread.
  void Refused(std::uint64_t hash, std::uint32_t cost) {
    const std::size_t place = tags_.Find(hash);
    if (place != tags_.kNone) refused(place) += cost;
  }

  // Whether the tag is among those that are looked at. Any thread.
  bool Knows(std::uint64_t hash) const { return tags_.Find(hash) != tags_.kNone; }

  // Hits of a tag were served within an interval, here or elsewhere.
  struct Hits {
    Tokens hits;
    Instant first, from, to;    // the first of them, and about when the others were
    bool here = false;
    std::optional<Tokens> refused{};    // beside them, if that is foretold
    Tokens made = 0;                    // of the debt that they made
    Tokens paid = 0;                    // of what was beyond the limit, by refill since then
  };
  // A peer's `hits` left a tag's bucket near its limit: looks at it from now on. `unreported` of its hits are in the
  // bucket and will be told of by Served. One thread, as all that follows but Served.
  void Drained(std::uint64_t hash, const Tag& tag, const TagLook& look, const Hits& hits, Tokens unreported,
               Instant now);
  // False: the tag is not among them. Any thread.
  bool Served(std::uint64_t hash, const Hits& hits, Instant now);

  // ---- Without ----

  bool Due(Instant now) const { return now - looked_at_ >= kLookEvery * 9 / 10; }
  // Hosts report every `period`.
  void SetPeriod(Duration period) { period_ = period; }
  // Ages what there is. Then Look is to be called for each place with a hash, and Close for each rule.
  void Begin(Instant now);

  std::size_t places() const { return tags_.places(); }
  // 0: no tag is there.
  std::uint64_t HashAt(std::size_t place) const { return tags_.HashAt(place); }
  const TagAccuracy& tag(std::size_t place) const { return tags_[place].account; }

  // With its shard locked: replays what is complete; false if the tag rests, and is forgotten.
  bool Look(std::size_t place, const TagLook& look, Instant now);
  void Forget(std::size_t place) { tags_.Remove(place); }

  // A rule, of which `served` tokens were heard of since the start. Its news wait for TakeNews.
  void Close(std::size_t rule, std::size_t counter, std::uint64_t served, double tolerance_percent);
  // The counter is another rule's from now on, of which `served` have been heard of.
  void Reassign(std::size_t counter, std::uint64_t served);

  const RuleAccuracy& rule(std::size_t counter) const { return rules_[counter]; }
  // The tags that deviated most, the most first.
  std::vector<TagAccuracy> Hottest(std::size_t count) const;
  // Null if the tag is not among those that are looked at.
  const TagAccuracy* Find(std::uint64_t hash) const;

  std::size_t tags() const { return tags_.used(); }
  std::uint64_t crowded() const { return crowded_; }    // times that there was no room for a tag
  std::uint64_t alerts() const { return alerts_; }      // that began
  const Deviation& ever() const { return ever_; }
  // The news of the latest look, once.
  std::vector<AccuracyNews> TakeNews() { return std::exchange(news_, {}); }

 private:
  struct OfSet {
    std::array<std::uint32_t, kWays> refused{};    // since the last look
    std::array<float, kWays> weights{};            // tokens; of two tags the lighter one makes room
  };

  // What was heard of a tag, under the lock of its shard.
  struct Past {
    Retrospect retrospect;
    Instant told_at;                   // when what this host refused was taken
    Tokens here = 0, elsewhere = 0;    // served, aged
    Tokens refused = 0;                // by this host, aged
    bool foretold = false;             // what others refuse comes with their hits
    Tokens known = 0;                  // of what this host will tell
    Tokens beyond = 0;                 // of hits that came too late, since the look before
    Tokens unsure = 0;                 // the same of hits that may have been in another window
  };

  struct Known {
    TagAccuracy account;
    std::unique_ptr<Past> past;    // stays when the tag is forgotten
  };

  std::uint32_t& refused(std::size_t place) { return tags_.beside(place).refused[place % kWays]; }
  float& weight(std::size_t place) { return tags_.beside(place).weights[place % kWays]; }
  void TakeRefused(std::size_t place, Instant now);
  static Tokens UnsureOf(const Past& past, const Hits& hits);
  RuleAccuracy& Rule(std::size_t counter);
  void Count(std::size_t counter, const Deviation& change);

  SideTable<Known, kWays, OfSet> tags_{kTags};
  std::vector<RuleAccuracy> rules_;    // by counter
  std::size_t rules_used_ = 0;         // of these; no further one has anything to age
  std::vector<Deviation> newly_;       // by counter: of tags when first looked at, until Close counts what was served
  std::vector<std::uint64_t> served_before_;
  Instant looked_at_{};
  Duration period_{};
  double age_ = 1;    // what a look leaves of sums
  std::uint64_t crowded_ = 0, alerts_ = 0;
  Deviation ever_;
  std::vector<AccuracyNews> news_;
};

}    // namespace dthrottle
