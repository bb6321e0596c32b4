// Work on a loop in slices: some 100 us of it a turn, so that applications are answered between. It goes on while there
// is more, when it is next due, and when somebody wakes it.
#pragma once

#include <uv.h>

#include <functional>

#include "base/time.h"
#include "io/timer.h"

namespace dthrottle {

class Slices {
 public:
  struct Work {
    std::function<bool(Instant end)> turn;    // works until `end`; whether there is more to do at once
    std::function<Instant()> next;            // when there is something to do though nobody wakes it
  };

  // The loop must outlive it. Nothing is done before Start.
  Slices(uv_loop_t* loop, Work work);
  ~Slices();

  // Begins at once, or goes on after Stop.
  void Start();
  // Until Start no turn begins, even if it is woken. May be called in a turn.
  void Stop();

  // There is something to do. Any thread; after Close the loop's only.
  void Wake() {
    if (!closed_) uv_async_send(&wake_);
  }

  // The loop must run once more.
  void Close();

 private:
  void StartTurns();
  void OnTurn();

  uv_loop_t* const loop_;
  const Work work_;
  uv_async_t wake_;
  Timer timer_;          // the work is due
  uv_idle_t working_;    // while there is more to do
  bool stopped_ = true;
  bool closed_ = false;
};

}    // namespace dthrottle
