// What other sites add to the bound that a limit has in theory (share/accuracy/certificate.h).
#pragma once

#include <algorithm>

#include "share/share.h"
#include "share/sites/site_sharing.h"

namespace dthrottle {

// Each of them may serve burst + rate x the time until it is heard. Under a limit that keeps its part while it is not
// heard, no more than until it is missed.
inline Tokens ExcessOfSites(const LimiterCore& core, const Limit& limit) {
  Tokens sum = 0;
  const Duration period = ToDuration(core.waste_window);
  for (PeerAge site : core.sites) {
    if (limit.keeps_part) site.heard_ago = std::min<Duration>(site.heard_ago, SiteSharing::kMissedPeriods * period);
    sum += ExcessOfPeer({limit.shape.burst(), limit.shape.rate(), std::nullopt, period}, site);
  }
  return sum;
}

}    // namespace dthrottle
