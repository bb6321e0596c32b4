// Graphs as people write them: lists of links, DOT, names of well-known graphs, and the settings of a fleet.
//
// Whatever is wrong is an error that names the file, the line and what is allowed. Sizes are bounded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "capacity/graph.h"
#include "config/settings.h"

namespace dthrottle::plan {

inline constexpr std::uint32_t kNodesMax = 10'000;
inline constexpr std::size_t kLinksMax = 1'000'000;
inline constexpr std::size_t kGraphBytesMax = std::size_t{32} << 20;
inline constexpr std::size_t kNodeNameBytesMax = 255;
inline constexpr double kWeightMin = 1e-9, kWeightMax = 1e9;

struct NamedGraph {
  Graph graph;
  std::vector<std::string> names;    // one a node
  std::vector<std::string> notes;    // what a person should know about how it was read
};

// Either of the two below: DOT if the first word is "graph", "digraph" or "strict". A byte order mark is skipped.
Result<NamedGraph> ParseGraph(std::string_view text, std::string_view file);

// A line "a b [weight]" for each link, weight 1 if there is none; "#" begins a comment. Nodes are in the order of their
// first appearance, or by number if all names are numbers.
Result<NamedGraph> ParseEdgeList(std::string_view text, std::string_view file);

// The part of DOT that says who is linked to whom: "graph { a -- b -- c [weight=2]; }". Other attributes are skipped;
// directed graphs, subgraphs and ports are refused.
Result<NamedGraph> ParseDot(std::string_view text, std::string_view file);

// "ring:10", "path:10", "star:5", "complete:5", "grid:3:4", "regular:100:4[:SEED]", "random:20:40[:SEED]" (nodes and
// links), or the paper's "dst:1" and "dst:2". Nodes are "0" and so on; all weights are 1.
//
// dst:1 and dst:2 are graphs #1 and #2 of DST Example 2, which prints pictures only. They are the tree, and a tree with
// added links, that reproduce every digit of Tables 3 and 4.
Result<NamedGraph> Generate(std::string_view what);
bool IsGenerator(std::string_view what);    // whether its first word is one of these
inline constexpr std::string_view kGenerators =
    "ring:N, path:N, star:N, complete:N, grid:ROWS:COLUMNS, regular:N:DEGREE[:SEED], random:N:LINKS[:SEED], dst:1, "
    "dst:2";

// One host's settings, and the file that they are from.
struct HostSettings {
  std::string file;
  Settings settings;
};

// peers.name, or else what its file is called.
std::string NameOf(const HostSettings& host);

// The graph of a fleet's connections: a node a host; a link of weight 1 if
// either connects to the other. An address in peers.connect is the host that binds it, or the one whose name and port
// it is. One that is nobody's becomes a node of its own, and a note.
Result<NamedGraph> FleetGraph(std::span<const HostSettings> hosts);

}    // namespace dthrottle::plan
