#include "daemon/orders.h"

#include <csignal>
#include <utility>

#include "base/check.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};

}    // namespace

Orders::Orders(uv_loop_t* loop, const Service& service, Takers takers)
    : service_(service), takers_(std::move(takers)), watchdog_(loop, [this] {
        if (takers_.alive()) service_.Alive();
      }) {
  for (uv_signal_t& signal : signals_) {
    DT_CHECK(uv_signal_init(loop, &signal) == 0);
    signal.data = this;
  }
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
  if (const auto interval = service_.watchdog()) watchdog_.StartNowAndEvery(*interval / 4);
}

void Orders::Close() {
  for (uv_signal_t& signal : signals_) uv_close(reinterpret_cast<uv_handle_t*>(&signal), nullptr);
  watchdog_.Close();
}

}    // namespace dthrottle
