// How many queries to refuse while the host runs hot (shed/curve.h), by the priorities of limits.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>

#include "shed/curve.h"
#include "shed/signal.h"

namespace dthrottle {

class Shedder {
 public:
  // From now on some queries are refused under limits that shed, as `curve` has it where the signal is at `x`. The
  // curve's interval is cut into as many equal steps as there are `priorities`, the least important first: the next one
  // begins to be refused when all of the one before it is. With one priority it is the whole interval.
  void Shed(const std::bitset<kShedPriorities>& priorities, const ShedCurve& curve, double x);
  void Stop();

  // The probability for limits of a priority; 0 for kShedPriorities, which never shed. Any thread.
  double probability(std::size_t priority) const { return probability_[priority].load(std::memory_order_relaxed); }
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  // Written by the owner's thread when the signal was measured, read with every query: on a line of its own.
  alignas(64) std::atomic<bool> any_{false};    // whether some probability is not 0
  std::array<std::atomic<double>, kShedPriorities + 1> probability_{};
};

}    // namespace dthrottle
