// Fleets without the random phases of their hosts.
#pragma once

#include <cstdint>

#include "lab/fleet.h"

namespace dthrottle::testing {

// The same fleet, but all of its hosts report at the same moments: every period, from one period on.
inline lab::FleetOptions InPhase(lab::FleetOptions options, std::uint64_t seed) {
  options.starts.assign(options.hosts, lab::WorldTime{});
  lab::Fleet fleet(options, seed);
  fleet.Run(lab::WorldTime{});
  for (std::uint32_t i = 0; i < options.hosts; ++i) {
    const Duration waits = fleet.host(i).clock().When(fleet.host(i).sharing().next()) - fleet.now();
    options.starts[i] += options.period - waits;
  }
  return options;
}

}    // namespace dthrottle::testing
