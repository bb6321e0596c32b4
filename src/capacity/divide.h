// One node's limit among its applications: DST section 7, Algorithms 1 and 2.
//
// Both print the test r_i <= l_i(k) with an l_i that is defined nowhere; the limit x_i(k) is meant. With enough for
// everybody each gets what it asked for; the paper gives what is left to nobody, so that any growth is throttled for a
// cycle. That slack is `reserve` here, for the caller to lend.
#pragma once

#include <limits>
#include <span>
#include <vector>

namespace dthrottle {

// How a node divides its limit among its applications.
struct ClientLimits {
  std::vector<double> limits;    // one an application, requests; sum to the node's limit when there is not enough
  double level = std::numeric_limits<double>::infinity();    // the most anybody got, requests; infinite: nobody is cut
  double reserve = 0;                                        // limit - sum of limits, requests
};

// Algorithm 1: everybody keeps the same share of what it asked for. `requests` >= 0, one an application; `limit` >= 0.
// Sets no level.
ClientLimits DivideByRatio(std::span<const double> requests, double limit);

// The level of Algorithm 2 for these requests, which it sorts; infinite where there is enough for all.
double LevelOf(std::span<double> requests, double limit);

// The same where requests have weights > 0 and everybody gets min(request, weight x level).
struct WeightedRequest {
  double request = 0, weight = 1;
};
double LevelOf(std::span<WeightedRequest> requests, double limit);

// Algorithm 2: water-filling. Everybody gets min(request, level), the level such that the limits sum to `limit`.
//
// Departure: as printed it is wrong. s is never reset, so line 13 adds the whole history of surpluses to a level that
// contains it already: (1, 2, 10, 10) with 12 gives level 5.5 and admits 14; for j = c it can divide by zero (1, 1, 1,
// 10 with 9); and its last loop gives everybody l, so that the limits sum to c l, above the limit. Corrected: the
// surplus of one application, l - r_j, is spread over the c - j that are left, and limits are min(r_j, l).
ClientLimits DivideByLevel(std::span<const double> requests, double limit);

}    // namespace dthrottle
