// Work that goes on between queries for a fifth of the time. A thread that never sleeps is put aside whenever somebody
// else wants its processor, for several milliseconds that every query waits; one that sleeps most of the time is woken at
// once.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "io/clock.h"
#include "io/timer.h"

namespace dthrottle {

class SpareWork {
 public:
  // `some` does a little of it, and returns whether there is more; `done` is called when there is not.
  SpareWork(uv_loop_t* loop, std::function<bool()> some, std::function<void()> done)
      : some_(std::move(some)), done_(std::move(done)), timer_(loop, [this] { OnTimer(); }) {}

  // Begins in the next turn of the loop.
  void Start() { timer_.StartNowAndEvery(std::chrono::milliseconds(1)); }
  void StartAtOnce() {
    Start();
    OnTimer();
  }
  void Stop() { timer_.Stop(); }
  // The loop must run once more.
  void Close() { timer_.Close(); }

 private:
  void OnTimer() {
    const Instant end = Now() + std::chrono::microseconds(200);
    while (some_()) {
      if (Now() >= end) return;
    }
    timer_.Stop();
    done_();
  }

  const std::function<bool()> some_;
  const std::function<void()> done_;
  Timer timer_;
};

}    // namespace dthrottle
