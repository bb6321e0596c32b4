#include "daemon/orders.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};

}    // namespace

Orders::Orders(uv_loop_t* loop, const Service& service, Takers takers)
    : service_(service), takers_(std::move(takers)) {
  for (uv_signal_t& signal : signals_) {
    DT_CHECK(uv_signal_init(loop, &signal) == 0);
    signal.data = this;
  }
  DT_CHECK(uv_timer_init(loop, &watchdog_) == 0);
  watchdog_.data = this;
}

void Orders::Start() {
  const auto on_signal = [](uv_signal_t* s, int number) {
    const Takers& takers = static_cast<Orders*>(s->data)->takers_;
    if (number == SIGHUP) return takers.reload();
    if (number == SIGUSR2) return takers.upgrade();
    takers.stop(number);
  };
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    DT_CHECK(uv_signal_start(&signals_[i], on_signal, kSignals[i]) == 0);
  }
  BlockOrders(false);    // the start of the program, or the program before it, has blocked them
  const auto interval = service_.watchdog();
  if (!interval.has_value()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(*interval / 4).count();
  const auto tick = static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 1));
  uv_timer_start(
      &watchdog_, [](uv_timer_t* t) { static_cast<Orders*>(t->data)->OnWatchdog(); }, 0, tick);
}

void Orders::OnWatchdog() {
  if (takers_.alive()) service_.Alive();
}

void Orders::StopWatchdog() {
  uv_timer_stop(&watchdog_);
}

void Orders::Close() {
  for (uv_signal_t& signal : signals_) uv_close(reinterpret_cast<uv_handle_t*>(&signal), nullptr);
  uv_close(reinterpret_cast<uv_handle_t*>(&watchdog_), nullptr);
}

}    // namespace dthrottle
