// The last quarter of an hour of a host in fixed memory, so that the page has a past when it is opened: a point every
// kStep, of verdicts, latency, load and the rules that come first.
//
// It keeps differences of counts as whole numbers and durations as microseconds, in 32 bits each; what does not fit is
// the most that fits. A rule that a reload moves to another place begins anew.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "admin/snapshot.h"
#include "base/time.h"

namespace dthrottle {

class History {
 public:
  static constexpr Duration kStep = std::chrono::seconds(5);
  static constexpr std::size_t kPoints = 180;    // a quarter of an hour
  static constexpr std::size_t kRules = 32;

  // Takes a point if one is due; often enough is once a second. `now` never runs backwards.
  bool Due(Instant now) const { return now >= due_; }
  void Take(const Snapshot& snapshot, const Limiter& limiter, Instant now);

  // Everything as JSON, columns from the oldest point on; `null` stands for what was not measured.
  std::string Render(Instant now) const;

 private:
  struct Point {
    std::uint32_t served, throttled, shadowed, shed;    // queries
    std::uint32_t latency_us, lag_us;                   // the 99th percentile; kNone: there was nothing
    std::uint32_t cpu_permille, memory_kib;
    std::array<std::uint32_t, kRules> rule_served, rule_throttled;
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // What counts stood at when the last point was taken.
  struct Counted {
    RuleTotals all;
    std::uint64_t unmatched = 0;
    HistogramTotals latency, lag;
    Duration cpu{};
    std::vector<std::string> rules;    // kRules at most
    std::vector<RuleTotals> by_rule;
  };

  static Counted CountedNow(const Snapshot& snapshot, const Limiter& limiter);

  std::array<Point, kPoints> points_;
  std::size_t taken_ = 0;
  Instant due_{}, last_{};
  Counted before_;

 public:
  // What it takes, beside the names of rules.
  static constexpr std::size_t kBytes = sizeof(Point) * kPoints;
};

static_assert(History::kBytes <= 64 * 1024);

}    // namespace dthrottle
