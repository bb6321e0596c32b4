// Tells which connections are idle by counting ticks, a few in an idle timeout, so that no byte that arrives costs a
// look at a clock.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "base/time.h"
#include "io/timer.h"

namespace dthrottle {

class IdleTicks {
 public:
  // When a connection was alive last.
  using Mark = std::uint32_t;

  // Calls `on_tick` after each tick. The loop must outlive it.
  IdleTicks(uv_loop_t* loop, std::function<void()> on_tick)
      : timer_(loop, [this, on_tick = std::move(on_tick)] {
          ++ticks_;
          on_tick();
        }) {}

  // Zero: nothing is ever idle.
  void SetTimeout(Duration timeout);
  // Ticks while there is a connection.
  void Run(bool runs);

  Mark now() const { return ticks_; }
  // The mark of what has been silent that long, about.
  Mark Before(Duration silent) const;
  Duration Silence(Mark mark) const { return (ticks_ - mark) * tick_; }
  bool IsIdle(Mark mark) const { return ticks_ - mark > kTicks; }

  // The loop must run once more.
  void Close() { timer_.Close(); }

 private:
  static constexpr Mark kTicks = 8;    // in a timeout

  Timer timer_;
  Duration tick_{};    // zero: there is no timeout
  Mark ticks_ = 0;
  bool runs_ = false;
};

}    // namespace dthrottle
