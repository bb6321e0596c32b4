// What hosts that divide limits have to agree on, from their settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capacity/capacity_settings.h"
#include "config/settings.h"

namespace dthrottle {

// The graph that [capacity] describes without naming hosts; none: a list or a file has it.
std::optional<Graph> UnnamedGraph(const Settings& settings, std::uint32_t nodes);

// `members`, ascending, are the nodes of the graph; `rules` is the digest of those that divide.
CapacitySettings MakeCapacitySettings(const Settings& settings, std::vector<std::string> members, Graph graph,
                                      std::uint64_t rules);

}    // namespace dthrottle
