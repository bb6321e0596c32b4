// Simulated fleets of several sites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/fleet.h"

namespace dthrottle::testing {

// `owners` of each site's hosts own its tags.
inline std::vector<std::string> OwnersOfSites(std::size_t hosts, std::uint32_t sites, std::size_t owners) {
  std::vector<std::string> names;
  for (std::uint32_t site = 0; site < sites; ++site) {
    for (std::uint32_t i = 0; i < owners; ++i) {
      names.push_back(lab::HostName(static_cast<std::uint32_t>(site * hosts / sites) + i));
    }
  }
  return names;
}

}    // namespace dthrottle::testing
