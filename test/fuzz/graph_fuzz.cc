// A graph from text: never a crash, and what is accepted keeps its bounds and is accepted again as a list of links.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "plan/graph_reader.h"

using namespace dthrottle;
using namespace dthrottle::plan;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Result<NamedGraph> read = ParseGraph({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!read) return read.error().message.empty() ? (std::abort(), 0) : 0;
  const Graph& graph = read->graph;
  if (graph.size() < 2 || graph.size() > kNodesMax || read->names.size() != graph.size()) std::abort();
  std::string links;
  for (const WeightedLink& link : graph.links()) {
    if (!(link.weight >= kWeightMin && link.weight <= kWeightMax)) std::abort();
    links += fmt::format("{} {} {}\n", link.a, link.b, link.weight);
  }
  const Result<NamedGraph> again = ParseEdgeList(links, "again");
  if (links.empty() ? again.has_value() : !again || again->graph.links().size() != graph.links().size()) std::abort();
  return 0;
}
