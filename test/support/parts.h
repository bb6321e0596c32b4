// Parts of limits that hosts divide, as if the exchange of capacity had said them.
#pragma once

#include "share/ways.h"
#include "test/support/host.h"

namespace dthrottle::testing {

// Every tag has `usual` of its limit on this host until then, and `reserve` afterwards.
inline void LendParts(Host& host, double usual, double reserve = 0.01, Instant until = Instant::max()) {
  host.limiter->ways().Get<Division>().ChangeParts(
      [&](PartTable& parts) { parts.Lend({usual, reserve, OnBootClock(until)}); });
}

}    // namespace dthrottle::testing
