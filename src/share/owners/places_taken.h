// How many places of a tag that this host owns are taken, by all that have said so and are still believed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "share/share.h"

namespace dthrottle {

struct PlacesTaken {
  std::uint32_t site, abroad;    // by hosts of this site, and of others

  std::uint32_t all() const { return site + abroad; }
};

// With the tag's shard locked. REQUIRES: there are gauges.
inline PlacesTaken PlacesTakenOf(LimiterCore& core, std::uint64_t hash, Instant now) {
  const std::uint32_t elsewhere = core.gauges->Elsewhere(hash, now), abroad = core.gauges->OfSites(hash, now);
  // Another owner may have spoken of the tag before; its word is about the same hosts.
  const std::uint32_t before = core.gauges->OfPeer(hash, Gauges::kOwner, now);
  return {core.in_flight->taken(hash) + elsewhere - std::min(abroad + before, elsewhere), abroad};
}

}    // namespace dthrottle
