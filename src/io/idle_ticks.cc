#include "io/idle_ticks.h"

#include <algorithm>

namespace dthrottle {

void IdleTicks::SetTimeout(Duration timeout) {
  tick_ = timeout / kTicks;
  Run(runs_);
}

void IdleTicks::Run(bool runs) {
  runs_ = runs;
  runs && tick_ > Duration::zero() ? timer_.StartEvery(tick_) : timer_.Stop();
}

IdleTicks::Mark IdleTicks::Before(Duration silent) const {
  if (tick_ == Duration::zero()) return ticks_;
  return ticks_ - static_cast<Mark>(std::clamp<std::int64_t>(silent / tick_, 0, kTicks));
}

}    // namespace dthrottle
