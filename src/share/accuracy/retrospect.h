// What one bucket for all would have done with one tag, told in retrospect: some periods later every host has reported
// what it served, and the bucket is replayed in order of time.
//
// Time is cut into bins. A host's hits are spread over the bins of the interval that its report states, and its
// refusals beside them. A bin that no report can add to any more is settled: one bucket serves of its hits and refusals
// as many as it has tokens. What hosts served in a window beyond that bucket is over-admitted, what they served less is
// under-admitted; a window is a second, or a bin if that is longer.
//
// A report says when its first hit was, and not when the others were, so the end of a burst is known to within such an
// interval only. One bucket that was empty until then refills meanwhile, or serves: that much is `blurred`. Where it is
// more than half of what is over- and under-admitted, these two figures say no more than their order of magnitude.
#pragma once

#include <array>
#include <cstdint>

#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

// Tokens that hosts served beyond what one bucket for all serves, and short of it; and how uncertain both are.
struct Deviation {
  Tokens over = 0, under = 0, blurred = 0;

  Deviation& operator+=(const Deviation& o) {
    over += o.over, under += o.under, blurred += o.blurred;
    return *this;
  }
  // Whether over and under are nearer to the truth than a factor of two.
  bool clear() const { return 2 * blurred <= over + under; }

  Deviation& operator*=(double factor) {
    over *= factor, under *= factor, blurred *= factor;
    return *this;
  }
};

class Retrospect {
 public:
  // From `now` on, when the hosts' bucket has `level`. Hits that are older than three periods come too late for it.
  Retrospect(Tokens level, Duration period, Instant now);

  // A host served `hits`, the first of them at `first` and the others in [from, to], and refused so much beside them.
  // Returns the hits that come too late.
  // REQUIRES: from <= to.
  Tokens Served(Tokens hits, Tokens refused, Instant first, Instant from, Instant to);
  // Hosts refused tokens in [from, to].
  void Refused(Tokens tokens, Instant from, Instant to);

  // Replays what is complete at `now`. `burst` and `rate` (tokens/s) are the bucket's.
  Deviation Settle(Tokens burst, double rate, Instant now);

  // The stretch of time over which over- and under-admission are summed up.
  Duration window() const { return width_ * window_; }

  // Whether it has replayed all that it was told.
  bool complete() const { return settled_ > last_; }

  // Tokens that one bucket has more than the hosts' bucket: served beyond the limit and not made up for. Negative:
  // less.
  Tokens ahead() const { return one_for_all_ - hosts_; }

 private:
  static constexpr std::size_t kBins = 256;

  struct Bin {
    float hits = 0, refused = 0;
  };

  std::int64_t BinOf(Instant t) const { return t.time_since_epoch() / width_; }
  Bin& At(std::int64_t bin) { return bins_[static_cast<std::size_t>(bin) % kBins]; }
  Tokens Spread(Tokens tokens, Instant from, Instant to, float Bin::*kind);

  Duration lag_, width_;
  std::int64_t window_;           // in bins
  std::int64_t settled_;          // the first bin that is not
  std::int64_t last_;             // with something in it
  Tokens one_for_all_, hosts_;    // levels
  double interval_ = 0;           // of reports, in the mean of hits; s
  bool empty_ = false;            // one bucket refused something, and has not recovered
  Tokens beyond_ = 0;             // served by hosts and not by one bucket, in the window so far
  std::array<Bin, kBins> bins_{};
};

}    // namespace dthrottle
