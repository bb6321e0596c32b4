#include "limiter/demand_meter.h"

#include <algorithm>
#include <cmath>

namespace dthrottle {

namespace {

using namespace std::chrono_literals;

constexpr double kFalseAlarms = 0.02;    // times a second that a pause is taken for an end of demand by mistake
constexpr double kPauseMin = 3;          // queries that a pause has lacked, at least
constexpr double kUnlikely = 3.7;        // standard deviations of a Poisson count
constexpr double kLuck = 1;              // queries that make a count conspicuous by chance
constexpr double kMeanMin = 0.5;
constexpr Tokens kBlock = 16;    // queries after which the count begins anew
constexpr Duration kBlockMax = 4s, kRest = 500ms;

double Squared(double x) {
  return x * x;
}

// Poisson deviance: twice the logarithm of how much likelier `count` would be if it were the mean.
double Deviance(double count, double mean) {
  if (count == 0) return 2 * mean;
  mean = std::max(mean, kMeanMin);
  return 2 * (mean - count + count * std::log(count / mean));
}

}    // namespace

bool DemandMeter::Step(double dt, double memory, Instant asked_by, Instant now) {
  seen_ += (asked_ / dt - seen_) * dt / (memory + dt);
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
  if (block_seen_ * Seconds(now - asked_at_) > std::max(std::log(block_seen_ / kFalseAlarms), kPauseMin)) {
    block_seen_ = seen_ = block_ = 0;
    block_at_ = asked_at_;
    return any;
  }
  const double t = Seconds(now - block_at_), likely = block_seen_ * t;
  if (t > 0 && Deviance(block_, likely) > Squared(kUnlikely)) {
    seen_ = (block_ > likely ? block_ - kLuck : block_) / t;
  } else if (block_ < kBlock && now - block_at_ < kBlockMax) {
    return any;
  }
  block_seen_ = seen_;
  block_ = 0;
  block_at_ = now;
  return any;
}

}    // namespace dthrottle
