// How well a fleet shares: Jain's index, spread, and over-throttling.
#pragma once

#include <span>

namespace dthrottle {

// GDRL eq (16), 0 to 1; 1: all are equal. It is blind to sign and is 0 whenever the sum is 0, however equal the entries
// are: alarm on Spread instead. All zero counts as equal. REQUIRES: not empty.
double JainIndex(std::span<const double> q);

// Largest less smallest, in q's unit. Ours: what (16) cannot see. REQUIRES: not empty.
double Spread(std::span<const double> q);

// DST section 6: how much less a fleet let through than one limiter with the whole limit would have, over cycles.
class OverThrottling {
 public:
  // One cycle: limits x_i and requests r_i, one a node, requests.
  void Add(std::span<const double> limits, std::span<const double> requests);

  double accepted() const { return accepted_; }    // sum of a_total, eq (7), requests
  double ideal() const { return ideal_; }          // sum of a_ideal, eq (8), requests
  // Percent of the ideal; 0 if nothing was asked for.
  double percent() const { return ideal_ > 0 ? 100 * (ideal_ - accepted_) / ideal_ : 0; }

 private:
  double accepted_ = 0;
  double ideal_ = 0;
};

}    // namespace dthrottle
