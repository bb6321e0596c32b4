// How much a limiter is asked for: a low-pass filter over arrivals (GDRL section III-A).
#pragma once

#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/time.h"

namespace dthrottle {

class DemandEstimate {
 public:
  // `alpha` in (0, 1]: weight of the newest slot; GDRL uses 0.001. A small one is steady and late: after a change about
  // 1/alpha slots pass. The paper gives no start value. Without one the first slot is it; with 0, every limiter seems
  // equally idle for some 1/alpha slots, and looks fair (Jain's index of the *estimated* indicators stays above 0.99).
  explicit DemandEstimate(double alpha, std::optional<double> start = std::nullopt) : alpha_(alpha), value_(start) {
    DT_CHECK(alpha > 0 && alpha <= 1);
  }

  void SetAlpha(double alpha) { alpha_ = alpha; }
  static void Fields(auto& state, auto& self) { state(self.value_); }

  // Arrivals in one slot; GDRL has 0 or 1. Give a rate (arrivals / slot) to estimate a rate.
  void Observe(double arrivals) { value_ = value_ ? (1 - alpha_) * *value_ + alpha_ * arrivals : arrivals; }

  // lambda hat, in the unit of what was observed; 0 before anything was.
  double value() const { return value_.value_or(0); }

  // The alpha with which a step is forgotten to 1/e in `time_constant`, for slots of this length.
  static double Alpha(Duration slot, Duration time_constant) {
    DT_CHECK(slot > Duration{} && time_constant > Duration{});
    return -std::expm1(-Seconds(slot) / Seconds(time_constant));
  }

 private:
  double alpha_;
  std::optional<double> value_;
};

}    // namespace dthrottle
