// How accurate limits are that hosts share, as far as this one can know: what reports reveal is held against one bucket
// for all.
//
// Once a period a certificate looks at the tags that peers' hits have drained, a bounded number of them. A bucket that
// has heard of all hits until about now has the level L. One bucket for all, that served the same and refused what it
// has no token for, would be `ahead` tokens above it: those were served beyond the limit. It would also have served of
// what was refused meanwhile, R, as long as it has any; so its level is L + ahead - R, but no less than none and no
// more than a burst, and `ahead` is what that leaves over L. Where it rose, that much was over-admitted since the look
// before; where it fell because something was refused, that much was under-admitted: refused though one bucket would
// have served it. A tag that rests pays its debt without anybody being refused, and that is neither.
//
// What is exact: hits, as far as they were heard, each once. What is not: a host knows only its own refusals and takes
// the others for as many; it hears of hits late, so what evens out between two looks is not seen; and of a tag there is
// no room for it counts all debt that peers' hits make, which is no less than what was over-admitted.
//
// Sums are aged exponentially: of what was counted kMemory ago a 1/e-th is left. That takes two numbers a sum, where a
// ring of seconds would take hundreds, and an alert begins and ends without steps.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/tag.h"
#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// ---- What one look tells of one tag ----

struct TagLook {
  Tokens level;      // of the bucket that was charged what was heard
  Tokens burst;      // of it
  Tokens refused;    // by all hosts, since the look before
};

struct Deviation {
  Tokens over = 0, under = 0;

  Deviation& operator+=(const Deviation& o) {
    over += o.over, under += o.under;
    return *this;
  }
};

// Since the look before. `ahead`: tokens that the hosts have served beyond one bucket and not made up for yet;
// negative: that they are behind it.
Deviation LookAgain(Tokens& ahead, const TagLook& look);

// ---- What the theory allows ----

struct BoundTerms {
  Tokens burst;
  double rate;                          // tokens/s
  std::optional<Tokens> unheard_max;    // U, if hosts foretell each other
  Duration period;                      // between reports
};

// What is known of a peer.
struct PeerAge {
  Duration heard_ago{};    // its latest report
  Duration delay{};        // of its hits when they came
};

// The most that hosts together serve of a tag above burst + rate x t, in any stretch of time t:
//
//   the sum over peers of  burst + rate x (max(period, heard_ago) + delay),  and once  2 x rate x period
//
// Each host serves no more than burst + rate x t of its own bucket, to which a peer's hits are charged when they are
// that old at most; what wasted refill pays for late hits, which is no more than that of two periods (waste.h), comes
// on top. N hosts that hear each other in time are within (N - 1) (B + r (T + d)) + 2 r T; one that was not heard
// lately is bounded by how long that is. Under forecast a peer has no more than U, and as much again for each
// Forecast::kHearing that its reports take, as long as it is heard once in two periods.
Tokens ExcessBound(const BoundTerms& terms, std::span<const PeerAge> peers);

// ---- The account ----

// Of one rule. Sums are aged, except for the last two.
struct RuleAccuracy {
  Tokens served = 0;    // by all hosts, as far as they were heard
  Deviation observed;
  Tokens debt = 0;     // of the tag that owed most, at the last look
  Tokens ahead = 0;    // of the tag that was most ahead, at the last look
  bool alarmed = false;
  Deviation ever;    // since the start

  // In % of what one bucket for all would have served; 0 where nothing was.
  double over_percent() const { return Percent(observed.over); }
  double under_percent() const { return Percent(observed.under); }

 private:
  double Percent(Tokens part) const;
};

// Of one tag.
struct TagAccuracy {
  std::array<char, kTagBytesMax> bytes;
  std::uint8_t size = 0;
  bool is_digest = false;
  std::size_t counter = 0;    // of its rule
  Tokens ahead = 0;
  Tokens debt = 0;       // at the last look
  Deviation observed;    // aged

  Tag tag() const { return {{bytes.data(), size}, is_digest}; }
};

// An alert that began or is over.
struct AccuracyNews {
  std::size_t rule;    // its number
  bool began;
  double over_percent, tolerance_percent;
};

class Certificate {
 public:
  static constexpr std::size_t kSets = 64, kWays = 4;    // no fewer sets than shards of a table
  static constexpr Duration kMemory = std::chrono::minutes(1);
  static constexpr double kMemoryLooks = 10;    // or so many looks, if that is longer
  static constexpr Duration kLookEvery = std::chrono::seconds(1);
  static constexpr Tokens kAlertMin = 1;       // over-admitted, or there is no alert
  static constexpr double kAlertEnds = 0.8;    // of the tolerance

  explicit Certificate(std::size_t counters) : rules_(counters), served_before_(counters) {}

  // ---- With the shard of `hash` locked ----

  // A query was refused. Any thread.
  void Refused(std::uint64_t hash, std::uint32_t cost) {
    Set& set = sets_[hash >> kShift];
    for (std::size_t way = 0; way < kWays; ++way) {
      if (set.hashes[way].load(std::memory_order_relaxed) == hash && hash != 0) {
        set.refused[way] += cost;
        return;
      }
    }
  }

  // The rest is for one thread.

  // Peers' hits left a tag's bucket near its limit, `debt` below zero, and `made` of that is new.
  void Drained(std::uint64_t hash, const Tag& tag, std::size_t counter, Tokens debt, Tokens made);

  // ---- Without ----

  bool Due(Instant now) const { return now - looked_at_ >= kLookEvery * 9 / 10; }
  // Ages what there is. Then Look is to be called for what At names, and Close for each rule.
  void Begin(Instant now, Duration period);

  // The hash there, or 0.
  std::uint64_t At(std::size_t set, std::size_t way) const {
    return sets_[set].hashes[way].load(std::memory_order_relaxed);
  }
  const TagAccuracy& tag(std::size_t set, std::size_t way) const { return tags_[set * kWays + way]; }

  // With its shard locked: as the tag stands, of which `hosts` are asked for; false if it rests, and is forgotten.
  bool Look(std::size_t set, std::size_t way, std::size_t counter, Tokens level, Tokens burst, double hosts);
  void Forget(std::size_t set, std::size_t way) { sets_[set].hashes[way].store(0, std::memory_order_relaxed); }

  // A rule, of which `served` tokens were heard of since the start. Its news wait for TakeNews.
  void Close(std::size_t rule, std::size_t counter, std::uint64_t served, double tolerance_percent);
  // The counter is another rule's from now on, of which `served` have been heard of.
  void Reassign(std::size_t counter, std::uint64_t served);

  const RuleAccuracy& rule(std::size_t counter) const { return rules_[counter]; }
  // Those that deviated most, the most first.
  std::vector<TagAccuracy> Hottest(std::size_t count) const;
  // Null if the tag is not among those that are looked at.
  const TagAccuracy* Find(std::uint64_t hash) const;

  std::size_t tags() const;
  std::uint64_t crowded() const { return crowded_; }    // times that there was no room for a tag
  std::uint64_t alerts() const { return alerts_; }      // that began
  const Deviation& ever() const { return ever_; }
  // Of the latest look, once.
  std::vector<AccuracyNews> TakeNews() { return std::exchange(news_, {}); }

 private:
  static constexpr unsigned kShift = 64 - 6;
  static_assert(kSets == std::size_t{1} << (64 - kShift));

  struct alignas(64) Set {
    std::array<std::atomic<std::uint64_t>, kWays> hashes{};    // 0: free
    std::array<std::uint32_t, kWays> refused{};                // since the last look
    std::array<float, kWays> weights{};                        // tokens; of two tags the lighter one makes room
  };
  static_assert(sizeof(Set) == 64);

  RuleAccuracy& Rule(std::size_t counter);
  void Count(std::size_t counter, const Deviation& change);

  std::array<Set, kSets> sets_;
  std::vector<TagAccuracy> tags_ = std::vector<TagAccuracy>(kSets * kWays);
  std::vector<RuleAccuracy> rules_;    // by counter
  std::size_t rules_used_ = 0;         // of these; no further one has anything to age
  std::vector<std::uint64_t> served_before_;
  Instant looked_at_{};
  double age_ = 1;    // what a look leaves of sums
  std::uint64_t crowded_ = 0, alerts_ = 0;
  Deviation ever_;
  std::vector<AccuracyNews> news_;
};

}    // namespace dthrottle
