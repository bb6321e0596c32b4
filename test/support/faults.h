// Faults of simulated hosts and wires, as chance will have them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lab/fleet.h"
#include "lab/sampling.h"

namespace dthrottle::testing {

// Faults of all kinds that begin within [from, until) and last up to `lasts_max`. They overlap as chance will have it
// (together), or each has healed for `healed` before the next begins (one by one), as far as there is time.
struct FaultOptions {
  std::size_t count = 1;
  std::size_t hosts = 2;
  lab::WorldTime from{}, until{};
  Duration lasts_max{};
  bool one_by_one = false;
  Duration healed{};
};

inline std::vector<lab::Fault> RandomFaults(const FaultOptions& options, Prng& prng) {
  constexpr std::uint64_t kKinds = 6;
  std::vector<lab::Fault> faults;
  lab::WorldTime from = options.from;
  for (std::size_t i = 0; i < options.count && from < options.until; ++i) {
    lab::Fault fault;
    fault.kind = static_cast<lab::Fault::Kind>(prng.Below(kKinds));
    const auto left = static_cast<Duration::rep>(options.one_by_one ? options.count - i : 1);
    fault.at = from + lab::Uniform((options.until - from) / left - Duration(1), prng);
    fault.lasts = lab::Uniform(options.lasts_max, prng);
    fault.host = static_cast<std::uint32_t>(prng.Below(options.hosts));
    fault.size = 1 + static_cast<std::uint32_t>(prng.Below(std::max<std::size_t>(options.hosts / 2, 1)));
    faults.push_back(fault);
    if (options.one_by_one) from = fault.at + fault.lasts + options.healed;
  }
  return faults;
}

}    // namespace dthrottle::testing
