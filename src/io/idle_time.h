// Time that nobody else wants, for work in steps.
//
// The obvious way is a thread that has idle time only (SCHED_IDLE) and does the work. But a step is a system call that
// holds locks of the kernel, and on a busy processor such a thread may be put aside for seconds in the middle of it:
// then a query that touches a new page needs the lock, and waits as long. So that thread only gives a sign each time it
// gets the processor, and the thread that waits for the sign does one short step with ordinary priority.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "base/time.h"

namespace dthrottle {

class IdleTime {
 public:
  IdleTime() = default;
  ~IdleTime() { Stop(); }
  IdleTime(const IdleTime&) = delete;
  IdleTime& operator=(const IdleTime&) = delete;

  // Waits for `pause`, and then until a processor has nothing else to do. False, at once, after Stop. Where the system
  // does not let a thread have idle time only, the pause has to do. For one thread.
  bool Await(Duration pause);

  // For any thread; never waits for a processor to be idle.
  void Stop();

 private:
  struct Scout;

  bool Sleep(Duration pause);

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::shared_ptr<Scout> scout_;    // since the first Await
};

}    // namespace dthrottle
