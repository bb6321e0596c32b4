// What each of some hosts has of a limit that they divide equally.
#pragma once

#include <algorithm>

#include "bucket/bucket.h"

namespace dthrottle {

// Makes burst and rate of a Rule or an Override a host's part of them, though no bucket holds less than a token or
// refills slower than any may. REQUIRES: hosts >= 1.
template <class T>
void TakeEqualPart(T& limit, double hosts) {
  limit.burst = std::max(limit.burst / hosts, kBurstMin);
  limit.rate = std::max(limit.rate / hosts, RateMin(limit.burst));
}

}    // namespace dthrottle
