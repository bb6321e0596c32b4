// What one query thread writes while it answers, and others read: counters, the sketch of frequent tags, a sample of
// refusals. Each thread has a lane of its own, so threads share nothing but the table.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "base/counter.h"
#include "base/prng.h"
#include "base/tag.h"
#include "base/time.h"
#include "rule/rulebook.h"
#include "tally/refusals.h"
#include "tally/top_tags.h"

namespace dthrottle {

struct RuleCounters {
  Counter served;        // hits: queries answered OK within the limit
  Counter throttled;     // answered NO by the limit
  Counter shadowed;      // answered OK because of mode shadow; enforcing would have said NO
  Counter near_limit;    // of the served, left less than a fifth of the burst
  Counter shed;          // answered NO because the host runs hot
  Counter penalized;     // of the throttled, because of a penalty
  Counter over_quota;    // of the throttled, because a quota was spent
};

class Lane {
 public:
  // Indices of counters: those of a rule have the number that Tally gave its name, the others these.
  static constexpr std::size_t kUnmatched = Rulebook::kRulesMax;    // no rule, no override
  static constexpr std::size_t kNoRule = kUnmatched + 1;            // an override whose tag matches no rule
  static constexpr std::size_t kCounters = kNoRule + 1;

  explicit Lane(std::size_t number) : number_(number) {}
  std::size_t number() const { return number_; }    // its place among the lanes of the Tally

  const RuleCounters& counters(std::size_t index) const { return counters_[index]; }
  RuleCounters& counters(std::size_t index) { return counters_[index]; }

  // Adds what this lane saw most of. Any thread.
  void AddTop(TopSums& served, TopSums& throttled, Instant now) const;

  // ---- For the lane's own thread ----

  // To be called before a batch of queries is decided.
  void Tick(std::uint64_t queries, Instant now);

  // Whether the next query belongs in the sketches, which then is to be given to Sample.
  bool Sampled() { return --until_sample_ == 0; }
  void Sample(const Tag& tag, std::uint64_t hash, bool served, Prng& prng, Instant now);

  // So many queries of a tag were served or refused, none of which was sampled.
  void AddTimes(const Tag& tag, std::uint64_t hash, bool served, std::uint64_t times, Instant now);
  // No query belongs there from now on: nobody looks at this lane's sketches.
  void SampleNone() { until_sample_ = UINT64_MAX; }


  // What was refused lately.
  Refusals& refusals() { return refusals_; }
  const Refusals& refusals() const { return refusals_; }    // any thread

 private:
  // The sketches see at most about kSamplesPerTick queries a tick, and each of these stands for the queries that were
  // passed over: a quiet host counts every query, a busy one a fair sample that costs almost nothing.
  static constexpr std::uint64_t kSamplesPerTick = 1024;
  static constexpr Duration kTick = std::chrono::milliseconds(100);

  const std::size_t number_;
  std::array<RuleCounters, kCounters> counters_;
  mutable std::mutex top_mutex_;
  TopTags served_, throttled_;
  Refusals refusals_;
  std::uint64_t until_sample_ = 1;
  std::uint64_t stride_ = 1;    // queries that one sample stands for; a power of two
  std::uint64_t queries_in_tick_ = 0;
  Instant tick_ends_{};
};

}    // namespace dthrottle
