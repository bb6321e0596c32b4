// How often something took how long: counts in a few fixed buckets. One thread writes, any thread reads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/counter.h"
#include "base/time.h"

namespace dthrottle {

// Upper bounds of the buckets, included: 1, 2 and 5 of each power of ten from 1 us to 10 s, which holds the time of a
// query as well as that of a stall. One more bucket has everything beyond.
inline constexpr auto kHistogramBounds = [] {
  std::array<Duration, 22> bounds{};
  Duration::rep ns = 1000;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = Duration(ns);
    ns = i % 3 == 1 ? ns * 5 / 2 : ns * 2;
  }
  return bounds;
}();
static_assert(kHistogramBounds.back() == std::chrono::seconds(10));

struct HistogramTotals {
  std::array<std::uint64_t, kHistogramBounds.size() + 1> counts{};    // of each bucket by itself
  Duration sum{};

  HistogramTotals& operator+=(const HistogramTotals& o) {
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += o.counts[i];
    sum += o.sum;
    return *this;
  }
};

class Histogram {
 public:
  // Counts `n` that took `each`; a negative time counts as zero. REQUIRES: always called by the same thread.
  void Add(Duration each, std::uint64_t n = 1) {
    each = std::max(each, Duration::zero());
    std::size_t i = 0;    // nearly all are short, so the first few bounds decide
    while (i < kHistogramBounds.size() && each > kHistogramBounds[i]) ++i;
    counts_[i].Add(n);
    sum_ns_.Add(static_cast<std::uint64_t>(each.count()) * n);
  }

  HistogramTotals Read() const {
    HistogramTotals totals;
    for (std::size_t i = 0; i < counts_.size(); ++i) totals.counts[i] = counts_[i].Read();
    totals.sum = Duration(static_cast<Duration::rep>(sum_ns_.Read()));
    return totals;
  }

 private:
  std::array<Counter, kHistogramBounds.size() + 1> counts_;
  Counter sum_ns_;
};

}    // namespace dthrottle
