#include "lab/dividing_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "capacity/topology.h"
#include "lab/host_transports.h"
#include "limiter/dividing_settings.h"
#include "share/check.h"

namespace dthrottle::lab {

namespace {

// A graph that names hosts (a list, a file) is of other hosts than ours.
CapacitySettings Make(const Settings& settings, std::uint64_t rules, std::size_t hosts) {
  const auto nodes = static_cast<std::uint32_t>(hosts);
  std::vector<std::string> members;
  for (std::uint32_t i = 0; i < nodes; ++i) members.push_back(HostName(i));
  std::ranges::sort(members);
  auto graph = UnnamedGraph(settings, nodes);
  if (!graph) graph = RegularTopology(nodes, settings.capacity.degree);
  return MakeCapacitySettings(settings, std::move(members), *std::move(graph), rules);
}

}    // namespace

std::optional<CapacitySettings> CapacityOf(const Settings& settings, const Rulebook& rules, std::size_t hosts) {
  if (rules.divided_fingerprint() == 0 || hosts < 2) return std::nullopt;
  return Make(settings, rules.divided_fingerprint(), hosts);
}

Result<void> CheckCapacity(const Settings& settings, std::size_t hosts) {
  if (settings.capacity.indicator == "reported") {
    return Fail(
        "capacity.indicator = \"reported\": must be another one, because nobody reports here and parts would never "
        "move");
  }
  auto fits = CheckCapacitySettings(Make(settings, 1, hosts), HostName(0));
  if (!fits) return Fail("capacity: " + fits.error().message);
  return {};
}

std::string CapacityNote(const Settings& settings) {
  const CapacityGraph graph = settings.capacity.graph;
  if (graph != CapacityGraph::kList && graph != CapacityGraph::kFile) return "";
  return fmt::format(
      "capacity.graph = \"{}\" names hosts of its own: simulated as \"regular\" with capacity.degree = {}", Name(graph),
      settings.capacity.degree);
}

std::vector<std::string> PartWarnings(const Settings& settings, std::size_t hosts) {
  std::vector<std::string> warnings;
  if (settings.peers.enabled() || hosts < 2) return warnings;
  for (const Rule& rule : settings.rules) {
    if (rule.share != Share::kCapacity || rule.mode == Mode::kOff) continue;
    for (const std::string& warning : CheckShare(rule, {static_cast<double>(hosts), settings.peers.period})) {
      warnings.push_back(fmt::format("rule \"{}\": {}", rule.name, warning));
    }
  }
  return warnings;
}

Duration TimeToMeet(const Settings& settings, bool divides) {
  // A generation of capacity begins when a lease is over that others might have had.
  constexpr int kLeases = 3;
  const Duration reports = 2 * settings.peers.period + std::chrono::seconds(1);
  return divides ? std::max<Duration>(reports, kLeases * settings.capacity.lease) : reports;
}

}    // namespace dthrottle::lab
