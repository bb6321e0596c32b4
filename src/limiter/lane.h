// What one query thread writes while it answers, and others read: counters and the sketch of frequent tags. One lane a
// thread, so that threads share nothing but the table.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "base/counter.h"
#include "base/prng.h"
#include "base/spsc_ring.h"
#include "base/tag.h"
#include "base/time.h"
#include "limiter/top_tags.h"
#include "rule/rulebook.h"

namespace dthrottle {

struct RuleCounters {
  Counter served;        // hits: queries answered OK within the limit
  Counter throttled;     // answered NO by the limit
  Counter shadowed;      // answered OK because of mode shadow; enforcing would have said NO
  Counter near_limit;    // of the served, left less than a fifth of the burst
  Counter shed;          // answered NO because the host runs hot
};

// A tag that a query thread has something to say about.
struct NotedTag {
  std::array<char, kTagBytesMax> bytes;
  std::uint8_t size = 0;
  bool is_digest = false;
  LimitIndex limit = 0;    // under the rules in force

  Tag tag() const { return {{bytes.data(), size}, is_digest}; }
};

class Lane {
 public:
  // Counters of a rule are found by the number that the limiter gave its name (Limiter::counter_index).
  static constexpr std::size_t kUnmatched = Rulebook::kRulesMax;    // no rule, no override
  static constexpr std::size_t kNoRule = kUnmatched + 1;            // an override whose tag matches no rule
  static constexpr std::size_t kCounters = kNoRule + 1;

  const RuleCounters& counters(std::size_t index) const { return counters_[index]; }

  // Adds what this lane saw most of. Any thread.
  void AddTop(TopSums& served, TopSums& throttled, Instant now) const;

 private:
  friend class Limiter;

  // Feeds the sketches with about kSamplesPerTick queries a tick at most, each standing for as many as were passed
  // over: on a quiet host every query, on a busy one a fair sample that costs nothing to speak of.
  static constexpr std::uint64_t kSamplesPerTick = 1024;
  static constexpr Duration kTick = std::chrono::milliseconds(100);

  bool Sampled() { return --until_sample_ == 0; }
  void Sample(const Tag& tag, std::uint64_t hash, bool served, Prng& prng, Instant now);
  void Tick(std::uint64_t queries, Instant now);

  // Tells the owner of a tag, if there is room; of one tag hardly more than once a tick.
  void Note(const Tag& tag, std::uint64_t hash, LimitIndex limit);

  std::array<RuleCounters, kCounters> counters_;
  Counter held_;    // queries refused because peers had not heard of enough
  mutable std::mutex top_mutex_;
  TopTags served_, throttled_;
  std::uint64_t until_sample_ = 1;
  std::uint64_t stride_ = 1;    // queries that one sample stands for; a power of two
  std::uint64_t queries_in_tick_ = 0;
  Instant tick_ends_{};

  static constexpr std::size_t kNotedMax = 256;    // a tick
  SpscRing<NotedTag> noted_{kNotedMax};
  std::array<std::uint64_t, kNotedMax> noted_hashes_{};    // of this tick
};

}    // namespace dthrottle
