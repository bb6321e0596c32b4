// How long the table remembers the buckets of a rule while it is too small for all tags that are asked.
//
// A bucket that is forgotten before it is full gives its client one burst more. That is no harm while the rule's
// buckets stay for longer than they need to fill, burst / rate; below that a client that comes back gets more than its
// limit. The time is the rule's tags over its evictions a second: a newcomer of the rule is forgotten after its whole
// class has gone by. Evictions are counted where they happen; tags are counted in a sample of the table, one slice a
// look, so that no query pays for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/time.h"
#include "bucket/table.h"

namespace dthrottle {

class Retention {
 public:
  // How often Sample wants to be called, and the time over which it averages.
  static constexpr Duration kEvery = std::chrono::seconds(1);
  static constexpr Duration kAveraged = std::chrono::seconds(10);

  struct Totals {
    std::uint64_t evicted = 0;     // buckets forgotten before they were full
    std::uint64_t refusing = 0;    // of them, had refused queries
  };

  // For rules that are known by numbers below `rules`.
  explicit Retention(std::size_t rules) : rules_(rules) {}

  // Any thread.
  void Forgot(std::size_t rule, bool refusing);

  // ---- The rest is for one thread ----

  // Brings the averages up to `now`. `rule_of` says which rule a limit is of.
  void Sample(Table& table, const std::function<std::size_t(LimitIndex)>& rule_of, Instant now);

  // Since the rule has had its number.
  Totals totals(std::size_t rule) const;

  // None while nothing of the rule is evicted.
  std::optional<Duration> of(std::size_t rule) const;

  // The number is another rule's from now on.
  void Reassign(std::size_t rule);

 private:
  struct Counts {
    std::atomic<std::uint64_t> evicted{0}, refusing{0};
    Totals base;                 // what another rule had under this number
    std::uint64_t seen = 0;      // of `evicted`, by the latest look
    double tags = 0;             // in the table, averaged
    double evicted_per_s = 0;    // averaged
  };

  std::vector<Counts> rules_;
  Instant sampled_at_ = Instant::min();    // never
  std::size_t next_cell_ = 0;
};

}    // namespace dthrottle
