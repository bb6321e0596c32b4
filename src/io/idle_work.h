// Long work in steps, in a thread of its own that takes only time that is left over (idle_time.h).
#pragma once

#include <functional>
#include <thread>

#include "base/time.h"
#include "io/idle_time.h"

namespace dthrottle {

class IdleWork {
 public:
  // What goes before each step, told what the step before took. False ends the work.
  using Pause = std::function<bool(Duration took)>;

  IdleWork() = default;
  // Ends the work with its step.
  ~IdleWork();
  IdleWork(const IdleWork&) = delete;
  IdleWork& operator=(const IdleWork&) = delete;

  // Once. What the work uses must outlive this object.
  void Begin(std::function<void(const Pause& pause)> work);

 private:
  IdleTime idle_time_;
  std::thread thread_;
};

}    // namespace dthrottle
