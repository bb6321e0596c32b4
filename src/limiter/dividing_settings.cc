#include "limiter/dividing_settings.h"

#include <utility>

#include "capacity/topology.h"

namespace dthrottle {

std::optional<Graph> UnnamedGraph(const Settings& settings, std::uint32_t nodes) {
  if (settings.capacity.graph != CapacityGraph::kRegular) return std::nullopt;
  return RegularTopology(nodes, settings.capacity.degree);
}

CapacitySettings MakeCapacitySettings(const Settings& settings, std::vector<std::string> members, Graph graph,
                                      std::uint64_t rules) {
  const auto& from = settings.capacity;
  CapacitySettings made{.members = std::move(members), .graph = std::move(graph)};
  made.reserve = from.reserve;
  made.digest = rules;
  made.interval = from.interval;
  made.lease = from.lease;
  made.indicator = FindIndicator(from.indicator);
  if (from.gain > 0) made.gain = from.gain;
  made.tags_max = from.tags_max;
  return made;
}

}    // namespace dthrottle
