// What the system tells the daemon and hears from it: signals, and the service manager's watchdog.
#pragma once

#include <uv.h>

#include <functional>

#include "io/service.h"
#include "io/timer.h"

namespace dthrottle {

class Orders {
 public:
  struct Takers {
    std::function<void(int signal)> stop;    // SIGTERM, SIGINT
    std::function<void()> reload;            // SIGHUP
    std::function<void()> upgrade;           // SIGUSR2
    std::function<bool()> alive;             // whether the watchdog may be fed
  };

  Orders(uv_loop_t* loop, const Service& service, Takers takers);

  // Signals come from now on, and the watchdog is fed.
  void Start();

  // Feeds the watchdog no more.
  void StopWatchdog() { watchdog_.Stop(); }

  // Closes what it has on the loop, which must run once more.
  void Close();

 private:
  const Service& service_;
  const Takers takers_;
  uv_signal_t signals_[4];
  Timer watchdog_;
};

}    // namespace dthrottle
