// How many queries to refuse while the host runs hot.
#include "limiter/limiter.h"

namespace dthrottle {

void Limiter::Shed(const LogisticCurve& curve, double x) {
  const auto& priorities = rules_->shed_priorities();
  const std::size_t steps = priorities.count();
  std::size_t step = 0;
  bool any = false;
  for (std::size_t p = 0; p < kShedPriorities; ++p) {
    double probability = 0;
    if (priorities[p]) {
      probability = LogisticCurve::Step(curve.low(), curve.high(), step++, steps).RejectionProbability(x);
    }
    shed_.probability[p].store(probability, std::memory_order_relaxed);
    any = any || probability > 0;
  }
  shed_.any.store(any, std::memory_order_relaxed);
}

void Limiter::StopShedding() {
  for (auto& probability : shed_.probability) probability.store(0, std::memory_order_relaxed);
  shed_.any.store(false, std::memory_order_relaxed);
}

}    // namespace dthrottle
