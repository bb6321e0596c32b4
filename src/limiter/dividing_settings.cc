#include "limiter/dividing_settings.h"

#include <utility>

#include "capacity/topology.h"

namespace dthrottle {

std::optional<Graph> UnnamedGraph(const Settings& settings, std::uint32_t nodes) {
  switch (settings.capacity.graph) {
    case CapacityGraph::kRing:
      return RingTopology(nodes);
    case CapacityGraph::kRegular:
      return RegularTopology(nodes, settings.capacity.degree);
    case CapacityGraph::kComplete:
      return CompleteTopology(nodes);
    case CapacityGraph::kList:
    case CapacityGraph::kFile:
      break;
  }
  return std::nullopt;
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
  made.on_isolation = from.on_isolation == IsolatedShare::kKeep ? OnIsolation::kKeep : OnIsolation::kReserve;
  made.tags_max = from.tags_max;
  return made;
}

}    // namespace dthrottle
