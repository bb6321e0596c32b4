// A budget that refills: at most `burst` at once and `rate` a second in the long run. A caller may require that all of
// what it wants is there, or spend what it has and owe the rest, so that something larger than the burst still passes.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace dthrottle {

class Allowance {
 public:
  // It begins full.
  Allowance(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}

  // Spends `much` if all of it is there.
  bool Take(Instant now, double much = 1) {
    if (Left(now) < much) return false;
    left_ -= much;
    return true;
  }

  // What can be spent now; negative: what is owed.
  double Left(Instant now) {
    left_ = std::min(burst_, left_ + rate_ * Seconds(std::max(now - at_, Duration(0))));
    at_ = std::max(at_, now);
    return left_;
  }

  // Spends `much`, and owes at most one burst afterwards.
  void Spend(double much) { left_ = std::max(left_ - much, -burst_); }

 private:
  double rate_, burst_;
  double left_;
  Instant at_{};
};

}    // namespace dthrottle
