#include "io/idle_work.h"

#include <algorithm>
#include <utility>

#include "io/signals.h"

namespace dthrottle {

IdleWork::~IdleWork() {
  idle_time_.Stop();
  if (thread_.joinable()) thread_.join();
}

void IdleWork::Begin(std::function<void(const Pause& pause)> work) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this, work = std::move(work)] {
    constexpr Duration kPauseMin = std::chrono::milliseconds(1), kPauseMax = std::chrono::seconds(1);
    work([&](Duration took) { return idle_time_.Await(std::clamp<Duration>(10 * took, kPauseMin, kPauseMax)); });
  });
}

}    // namespace dthrottle
