// How fast a tag is asked for at this host: an exponential mean that is replaced where a count is too unlikely under
// it.
//
// A mean alone notices the end of a demand late, and a short mean is noisy. So queries are also counted in blocks, and
// a block whose count is too unlikely for a Poisson process of the mean's rate sets the mean: silence is noticed after
// some nine queries that did not come, whatever the rate. What comes back has a plain mean.
#pragma once

#include <algorithm>

#include "base/time.h"
#include "base/tokens.h"

namespace dthrottle {

class DemandMeter {
 public:
  explicit DemandMeter(Instant now) : asked_at_(now), block_at_(now) {}

  void Asked(Tokens tokens) { asked_ += tokens; }
  // Some of these were asked for since `begin`, and nobody knew.
  void AskedSince(Instant begin) { block_at_ = std::min(block_at_, begin); }
  // Tokens may be asked for all the time, and nobody knows yet: silence says nothing.
  void Awaits(Instant now) { asked_at_ = now; }
  // Tokens that were asked for before are not used after all.
  void CameBack(Tokens tokens) { back_ += tokens; }
  // Tokens were asked for since the step before, which was `dt` seconds ago, the latest of them by `asked_by`. `memory`
  // is the time constant of the mean in seconds, `cost` what a query asks for. Returns whether any were.
  bool Step(double dt, double memory, Tokens cost, Instant asked_by, Instant now);

  // The demand that is used, in tokens/s.
  double seen() const { return std::max(seen_ - returned_, 0.0); }
  // Demand and returns together, in tokens/s. The noise of seen() depends on them.
  double moved() const { return seen_ + returned_; }

 private:
  Tokens asked_ = 0, back_ = 0;    // since the step before
  double seen_ = 0;          // the mean, tokens/s
  double returned_ = 0;      // the mean of what comes back, tokens/s
  double block_seen_ = 0;    // of what is asked for, when the block began
  Tokens block_ = 0;         // asked since then
  Instant asked_at_;         // the latest query
  Instant block_at_;
};

}    // namespace dthrottle
