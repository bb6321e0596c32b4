#include "io/idle_time.h"

#include <sched.h>

#include <atomic>
#include <semaphore>
#include <thread>

#include "io/signals.h"

namespace dthrottle {

// What the thread that gives the sign looks at. It outlives the IdleTime until that thread has had the processor once
// more, since joining it would wait for idle time.
struct IdleTime::Scout {
  std::counting_semaphore<> wanted{0}, given{0};
  std::atomic<bool> ends{false};

  void Run() {
    wanted.acquire();    // with ordinary priority: what is touched first is touched here
    const sched_param idle{};
    ::sched_setscheduler(0, SCHED_IDLE, &idle);    // of this thread
    while (!ends.load(std::memory_order_relaxed)) {
      given.release();
      wanted.acquire();
    }
  }
};

bool IdleTime::Sleep(Duration pause) {
  std::unique_lock lock(mutex_);
  stopped_.wait_for(lock, pause, [this] { return stop_; });
  return !stop_;
}

bool IdleTime::Await(Duration pause) {
  if (!Sleep(pause)) return false;
  std::shared_ptr<Scout> scout;
  {
    const std::scoped_lock lock(mutex_);
    if (scout_ == nullptr) {
      scout_ = std::make_shared<Scout>();
      const SignalsBlocked blocked;
      std::thread([s = scout_] { s->Run(); }).detach();
    }
    scout = scout_;
  }
  scout->wanted.release();
  scout->given.acquire();
  const std::scoped_lock lock(mutex_);
  return !stop_;
}

void IdleTime::Stop() {
  const std::scoped_lock lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
  if (scout_ == nullptr) return;
  scout_->ends = true;
  scout_->wanted.release();
  scout_->given.release();
}

}    // namespace dthrottle
