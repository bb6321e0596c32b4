// Which hosts of a fleet own all tags, where settings say that some do (peers.spread = "owners").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/settings.h"

namespace dthrottle::lab {

// How many the settings name, or 3 where etcd has the list; 0: everybody hears everything.
std::uint32_t OwnersIn(const Settings& settings);

// The owners of all tags, by HostName: the first `count` hosts of each site, or all of a smaller site.
std::vector<std::string> FirstHosts(std::uint32_t count, std::uint32_t hosts, std::uint32_t sites);

}    // namespace dthrottle::lab
