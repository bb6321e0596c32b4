#include "share/forecast/demand_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/math.h"

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr double kFalseAlarms = 0.02;    // times a second that chance is taken for a change of demand
constexpr double kPauseMin = 3;          // queries that a pause has lacked, at least
constexpr double kUnlikely = 3.7;        // standard deviations of a Poisson count, at least
constexpr double kLuck = 1;              // queries that make a count conspicuous by chance
constexpr double kMeanMin = 0.5;
constexpr Tokens kBlock = 16;    // queries after which the count begins anew
constexpr Duration kBlockMax = 4s, kRest = 500ms;

// Poisson deviance: twice the logarithm of how much likelier `count` would be if it were the mean.
double Deviance(double count, double mean) {
  if (count == 0) return 2 * mean;
  mean = std::max(mean, kMeanMin);
  return 2 * (mean - count + count * std::log(count / mean));
}

}    // namespace

// Chance is in the number of queries, so what is likely is asked of counts: tokens divided by the cost.
bool DemandMeter::Step(double dt, double memory, Tokens cost, Instant asked_by, Instant now) {
  seen_ += (asked_ / dt - seen_) * dt / (memory + dt);
  returned_ += (std::exchange(back_, 0) / dt - returned_) * dt / (memory + dt);
  const bool any = asked_ > 0;
  if (any) {
    asked_at_ = std::min(now, asked_by);
    if (block_ == 0 && now - block_at_ > kRest) {
      block_at_ = asked_at_;    // this query begins the block, so it does not count
    } else {
      block_ += asked_;
    }
    asked_ = 0;
  }
  const double queries = block_seen_ / cost;    // a second
  if (queries * Seconds(now - asked_at_) > std::max(std::log(queries / kFalseAlarms), kPauseMin)) {
    block_seen_ = seen_ = block_ = 0;
    block_at_ = asked_at_;
    return any;
  }
  const double t = Seconds(now - block_at_), likely = block_seen_ * t;
  // Each query is a trial, and chance exceeds a deviance of x with a probability of some exp(-x / 2).
  const double unlikely = std::max(2 * std::log(queries / kFalseAlarms), Square(kUnlikely));
  if (t > 0 && Deviance(block_ / cost, likely / cost) > unlikely) {
    seen_ = (block_ > likely ? block_ - kLuck * cost : block_) / t;
  } else if (block_ < kBlock * cost && now - block_at_ < kBlockMax) {
    return any;
  }
  block_seen_ = seen_;
  block_ = 0;
  block_at_ = now;
  return any;
}

}    // namespace dthrottle
