#include "plan/divided_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "config/capacity_links.h"
#include "io/files.h"
#include "limiter/dividing_settings.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

namespace {

std::vector<std::string> Tidy(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// ":3", of the first line that has this word in it; nothing if there is none.
std::string LineOf(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == text.npos) return "";
  return fmt::format(":{}", std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1);
}

// Null for the members: those that the file names.
Result<Graph> GraphFromFile(const std::string& path, const std::vector<std::string>* known_members) {
  const auto text = ReadRegularFile(path, kGraphBytesMax);
  if (!text) return Fail("capacity.graph_file: " + text.error().message);
  const auto read = ParseGraph(*text, path);
  if (!read) return Fail("capacity.graph_file: " + read.error().message);
  const std::vector<std::string> members = Tidy(known_members != nullptr ? *known_members : read->names);
  std::vector<std::uint32_t> member;    // by node of the file
  for (const std::string& name : read->names) {
    const auto at = std::lower_bound(members.begin(), members.end(), name);
    if (at == members.end() || *at != name) {
      return Fail(fmt::format("capacity.graph_file: {}{}: \"{}\" is no member", path, LineOf(*text, name), name));
    }
    member.push_back(static_cast<std::uint32_t>(at - members.begin()));
  }
  std::vector<WeightedLink> links(read->graph.links().begin(), read->graph.links().end());
  for (WeightedLink& link : links) link.a = member[link.a], link.b = member[link.b];
  auto graph = GraphOfMembers(std::move(links), members);
  if (!graph) return Fail(fmt::format("capacity.graph_file: {}: {}", path, graph.error().message));
  return graph;
}

}    // namespace

Result<Graph> DividedGraph(const Settings& settings, const std::vector<std::string>& members) {
  const auto nodes = static_cast<std::uint32_t>(members.size());
  if (auto graph = UnnamedGraph(settings, nodes)) return std::move(*graph);
  if (settings.capacity.graph == CapacityGraph::kFile) return GraphFromFile(settings.capacity.graph_file, &members);
  auto graph = GraphOfLinks(settings.capacity.links, members);
  if (!graph) return Fail("capacity.links: " + graph.error().message);
  return graph;
}

Result<std::optional<NamedGraph>> DividedFleetGraph(std::span<const HostSettings> hosts) {
  const auto divides = [](const HostSettings& host) {
    return std::ranges::any_of(host.settings.rules, [](const Rule& rule) { return rule.share == Share::kCapacity; });
  };
  if (std::ranges::none_of(hosts, divides)) return std::nullopt;
  std::vector<std::string> named;
  for (const HostSettings& host : hosts) named.push_back(NameOf(host));
  std::optional<NamedGraph> graph;
  for (const HostSettings& host : hosts) {
    std::vector<std::string> members = Tidy(host.settings.capacity.members.empty() ? named : host.settings.capacity.members);
    auto its = DividedGraph(host.settings, members);
    if (!its) return Fail(fmt::format("{}: {}", host.file, its.error().message));
    if (!graph) {
      graph = NamedGraph{std::move(*its), std::move(members), {}};
    } else if (members != graph->names || !std::ranges::equal(its->links(), graph->graph.links())) {
      return Fail(fmt::format("{}: divides over other links than {}: [capacity] has to be the same on all hosts", host.file,
                              hosts.front().file));
    }
  }
  return graph;
}

Result<void> CheckGraphFile(const Settings& settings) {
  const auto& from = settings.capacity;
  if (from.graph != CapacityGraph::kFile || from.graph_file.empty()) return {};
  const auto graph = GraphFromFile(from.graph_file, from.members.empty() ? nullptr : &from.members);
  if (!graph) return Fail(graph.error().message);
  return {};
}

}    // namespace dthrottle::plan
