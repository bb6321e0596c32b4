#include "io/slices.h"

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

Slices::Slices(uv_loop_t* loop, Work work)
    : loop_(loop), work_(std::move(work)), timer_(loop, [this] { StartTurns(); }) {
  const auto on_wake = [](uv_async_t* h) { Owner<Slices>(h)->StartTurns(); };
  DT_CHECK(uv_async_init(loop_, &wake_, on_wake) == 0 && uv_idle_init(loop_, &working_) == 0);
  wake_.data = working_.data = this;
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
  timer_.Stop();
}

void Slices::StartTurns() {
  if (stopped_ || uv_is_active(reinterpret_cast<uv_handle_t*>(&working_)) != 0) return;
  timer_.Stop();
  uv_idle_start(&working_, [](uv_idle_t* h) { Owner<Slices>(h)->OnTurn(); });
}

void Slices::OnTurn() {
  if (work_.turn(Now() + kBudget) || stopped_) return;
  uv_idle_stop(&working_);
  timer_.StartAt(work_.next());
}

void Slices::Close() {
  closed_ = stopped_ = true;
  timer_.Close();
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
  uv_close(reinterpret_cast<uv_handle_t*>(&working_), nullptr);
}

}    // namespace dthrottle
