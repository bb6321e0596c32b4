#include "io/idle_ticks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "io/stream.h"

namespace dthrottle {

IdleTicks::IdleTicks(uv_loop_t* loop, std::function<void()> on_tick) : on_tick_(std::move(on_tick)) {
  DT_CHECK(uv_timer_init(loop, &timer_) == 0);
  timer_.data = this;
}

void IdleTicks::SetTimeout(Duration timeout) {
  tick_ = timeout / kTicks;
  Run(runs_);
}

void IdleTicks::Run(bool runs) {
  runs_ = runs;
  uv_timer_stop(&timer_);
  if (!runs || tick_ == Duration::zero()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(tick_).count();
  const auto every = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  const auto on_timer = [](uv_timer_t* t) {
    ++Owner<IdleTicks>(t)->ticks_;
    Owner<IdleTicks>(t)->on_tick_();
  };
  DT_CHECK(uv_timer_start(&timer_, on_timer, every, every) == 0);
}

IdleTicks::Mark IdleTicks::Before(Duration silent) const {
  if (tick_ == Duration::zero()) return ticks_;
  return ticks_ - static_cast<Mark>(std::clamp<std::int64_t>(silent / tick_, 0, kTicks));
}

void IdleTicks::Close() {
  auto* const handle = reinterpret_cast<uv_handle_t*>(&timer_);
  if (uv_is_closing(handle) == 0) uv_close(handle, nullptr);
}

}    // namespace dthrottle
