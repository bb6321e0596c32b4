// The graph over which hosts divide a capacity, as their settings say it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "capacity/graph.h"
#include "config/settings.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

// A node is the place of a name in `members`. Fails with a sentence for people, which names the setting. REQUIRES: the
// members are in their order, each once.
Result<Graph> DividedGraph(const Settings& settings, const std::vector<std::string>& members);

// Reads the file of `capacity.graph_file` if the graph is to come from there, and fails with what is wrong with it.
// What it says is held against `capacity.members`; without them its own names are taken for the members.
Result<void> CheckGraphFile(const Settings& settings);

// The same of a fleet, with the names of its members: those that its settings name, or else the hosts given. Nothing if
// no rule divides its limit. Fails if hosts do not agree.
Result<std::optional<NamedGraph>> DividedFleetGraph(std::span<const HostSettings> hosts);

}    // namespace dthrottle::plan
