#include "limiter/shedder.h"

namespace dthrottle {

void Shedder::Shed(const std::bitset<kShedPriorities>& priorities, const ShedCurve& curve, double x) {
  const std::size_t steps = priorities.count();
  std::size_t step = 0;
  bool any = false;
  for (std::size_t p = 0; p < kShedPriorities; ++p) {
    double probability = 0;
    if (priorities[p]) {
      probability = curve.Part(step++, steps).RejectionProbability(x);
    }
    probability_[p].store(probability, std::memory_order_relaxed);
    any = any || probability > 0;
  }
  any_.store(any, std::memory_order_relaxed);
}

void Shedder::Stop() {
  for (auto& probability : probability_) probability.store(0, std::memory_order_relaxed);
  any_.store(false, std::memory_order_relaxed);
}

}    // namespace dthrottle
