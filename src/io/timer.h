// A timer of a loop, which calls a function.
#pragma once

#include <uv.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/time.h"
#include "io/clock.h"
#include "io/uv_handle.h"

namespace dthrottle {

class Timer {
 public:
  // Calls `work` on the loop each time it fires; this object may be destroyed there. The loop must run once more after
  // that, or after Close.
  Timer(uv_loop_t* loop, std::function<void()> work) : handle_(std::move(work)) {
    DT_CHECK(uv_timer_init(loop, handle_.get()) == 0);
  }

  // Each forgets what was started before. Times are rounded up to milliseconds, from the time that the loop last read.
  void StartOnce(Duration after) { Start(Milliseconds(after), 0); }
  void StartEvery(Duration period) { Start(Milliseconds(period), Milliseconds(period)); }
  void StartNowAndEvery(Duration period) { Start(0, Milliseconds(period)); }    // first in the next turn
  // Once, not before `at`, also where the loop's time is behind.
  void StartAt(Instant at) {
    if (!handle_.closed()) uv_update_time(handle_.get()->loop);
    StartOnce(at - Now());
  }

  void Stop() {
    if (!handle_.closed()) uv_timer_stop(handle_.get());
  }

  // When it fires next; none: it does not.
  std::optional<Duration> due_in() const {
    if (handle_.closed() || uv_is_active(reinterpret_cast<uv_handle_t*>(handle_.get())) == 0) return std::nullopt;
    return std::chrono::milliseconds(uv_timer_get_due_in(handle_.get()));
  }

  // It never fires again, whatever is started.
  void Close() { handle_.Close(); }

 private:
  static std::uint64_t Milliseconds(Duration d) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(d).count(), 0));
  }

  void Start(std::uint64_t after_ms, std::uint64_t period_ms) {
    if (!handle_.closed()) uv_timer_start(handle_.get(), handle_.Call, after_ms, period_ms);
  }

  UvHandle<uv_timer_t> handle_;
};

}    // namespace dthrottle
