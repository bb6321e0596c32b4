// Dividing a capacity among those who want it: Doorman "Available algorithms", for everybody at once.
//
//   none                  everybody gets what he wants, whatever there is
//   static                everybody gets the capacity of the settings, or what he wants if that is less
//   proportional_share    an equal share, if wanted, and of what others leave of theirs a part in proportion to what
//                         one wants beyond it
//   proportional_scaling  wants x capacity / all wants. The document does not describe it, but its figures (96.6 %,
//                         106.05 %) come from it
//   fair_share            an equal share, and what others leave of theirs again in equal shares, until nothing is left:
//                         min(wants, level x weight) for the one level at which nothing is left
//   priority_band         fair_share among those of the highest priority, of what they leave among those of the next
//                         one, and so on
//
// A server counts as its clients: an equal share is capacity x weight / all weights. With enough for everybody all but
// static give everybody what he wants; only none ever gives more than there is, and static, which asks nobody.
//
// This is the plain form, for tests, planning and simulation. The server asks DemandTree, which knows one answer
// without working out the others.
#pragma once

#include <span>
#include <vector>

#include "lease/resource.h"

namespace dthrottle::lease {

struct Demand {
  double wants = 0;     // >= 0
  double weight = 1;    // clients; > 0
  std::int64_t priority = 0;    // the larger, the sooner; for priority_band
};

// One share a demand, in their order. O(n log n) for fair_share, O(n) for the others. REQUIRES: capacity >= 0.
std::vector<double> Divide(Algorithm algorithm, double capacity, std::span<const Demand> demands);

// The two that depend on sums alone. What is wanted beyond equal shares is `needed`, what others leave `unused`.
double ProportionalShare(const Demand& demand, double equal, double unused, double needed);
double ProportionalScaling(double wants, double capacity, double all_wants);

}    // namespace dthrottle::lease
