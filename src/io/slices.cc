#include "io/slices.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "io/clock.h"
#include "io/stream.h"

namespace dthrottle {

namespace {

// What a turn of the loop spends on this before it looks at its applications again.
constexpr Duration kBudget = std::chrono::microseconds(100);

}    // namespace

Slices::Slices(uv_loop_t* loop, Work work) : loop_(loop), work_(std::move(work)) {
  const auto on_wake = [](uv_async_t* h) { Owner<Slices>(h)->StartTurns(); };
  DT_CHECK(uv_async_init(loop_, &wake_, on_wake) == 0 && uv_timer_init(loop_, &timer_) == 0 &&
           uv_idle_init(loop_, &working_) == 0);
  wake_.data = timer_.data = working_.data = this;
}

Slices::~Slices() {
  DT_CHECK(closed_);
}

void Slices::Start() {
  stopped_ = false;
  StartTurns();
}

void Slices::Stop() {
  stopped_ = true;
  uv_idle_stop(&working_);
  uv_timer_stop(&timer_);
}

void Slices::StartTurns() {
  if (stopped_ || uv_is_active(reinterpret_cast<uv_handle_t*>(&working_)) != 0) return;
  uv_timer_stop(&timer_);
  uv_idle_start(&working_, [](uv_idle_t* h) { Owner<Slices>(h)->OnTurn(); });
}

void Slices::OnTurn() {
  if (work_.turn(Now() + kBudget) || stopped_) return;
  uv_idle_stop(&working_);
  uv_update_time(loop_);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(work_.next() - Now()).count();
  uv_timer_start(
      &timer_, [](uv_timer_t* h) { Owner<Slices>(h)->StartTurns(); },
      static_cast<std::uint64_t>(std::max<std::int64_t>(wait, 0)), 0);
}

void Slices::Close() {
  closed_ = stopped_ = true;
  for (auto* handle : {reinterpret_cast<uv_handle_t*>(&wake_), reinterpret_cast<uv_handle_t*>(&timer_),
                       reinterpret_cast<uv_handle_t*>(&working_)}) {
    uv_close(handle, nullptr);
  }
}

}    // namespace dthrottle
