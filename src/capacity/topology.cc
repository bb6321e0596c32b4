#include "capacity/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr int kAttemptsMax = 10'000;    // at a random graph that is simple and connected

// Each node `degree` times, drawn in pairs; pairs that would be a loop or double are drawn again, among what is left
// (Steger and Wormald 1999). Empty: it did not come out even.
Pairs RegularOnce(std::uint32_t n, std::uint64_t degree, Prng& prng) {
  std::vector<std::uint32_t> ends;
  for (std::uint32_t i = 0; i < n; ++i) ends.insert(ends.end(), degree, i);
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  while (!ends.empty()) {
    Shuffle(ends, prng);
    std::vector<std::uint32_t> left;
    for (std::size_t i = 0; i + 1 < ends.size(); i += 2) {
      const auto [a, b] = std::minmax(ends[i], ends[i + 1]);
      if (a == b || !pairs.emplace(a, b).second) left.insert(left.end(), {a, b});
    }
    if (left.size() == ends.size()) return {};
    ends = std::move(left);
  }
  return {pairs.begin(), pairs.end()};
}

Graph Sound(std::uint32_t nodes, const Pairs& pairs) {
  Result<Graph> graph = GraphOf(nodes, pairs);
  DT_CHECK(graph.has_value());
  return *std::move(graph);
}

}    // namespace

void Shuffle(std::vector<std::uint32_t>& values, Prng& prng) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[prng.Below(i)]);
}

Pairs PathPairs(std::uint32_t nodes) {
  Pairs pairs;
  for (std::uint32_t i = 1; i < nodes; ++i) pairs.emplace_back(i - 1, i);
  return pairs;
}

Pairs RingPairs(std::uint32_t nodes) {
  Pairs pairs = PathPairs(nodes);
  if (nodes > 2) pairs.emplace_back(nodes - 1, 0);
  return pairs;
}

Pairs CompletePairs(std::uint32_t nodes) {
  Pairs pairs;
  for (std::uint32_t i = 0; i < nodes; ++i) {
    for (std::uint32_t j = i + 1; j < nodes; ++j) pairs.emplace_back(i, j);
  }
  return pairs;
}

Result<Pairs> RegularPairs(std::uint32_t nodes, std::uint64_t degree, Prng& prng) {
  if (degree < 1 || degree >= nodes || nodes * degree % 2 != 0 || (degree == 1 && nodes > 2)) {
    return Fail(fmt::format("regular:{}:{}: a connected graph needs a degree from 2 to {} and an even number of ends",
                            nodes, degree, nodes - 1));
  }
  if (degree + 1 == nodes) return CompletePairs(nodes);
  for (int i = 0; i < kAttemptsMax; ++i) {
    Pairs pairs = RegularOnce(nodes, degree, prng);
    if (!pairs.empty() && Sound(nodes, pairs).Connected()) return pairs;
  }
  return Fail(fmt::format("regular:{}:{}: no connected graph in {} attempts; try ring:{} or a higher degree", nodes,
                          degree, kAttemptsMax, nodes));
}

Result<Graph> GraphOf(std::uint32_t nodes, const Pairs& pairs) {
  std::vector<WeightedLink> links;
  for (const auto& [a, b] : pairs) links.push_back({a, b, 1});
  return Graph::Make(nodes, std::move(links));
}

Graph RegularTopology(std::uint32_t nodes, std::uint32_t degree) {
  if (degree <= 2) return RingTopology(nodes);
  if (nodes % 2 != 0 && degree % 2 != 0) ++degree;
  if (degree + 1 >= nodes) return CompleteTopology(nodes);
  Prng prng(nodes);    // the same everywhere
  const Result<Pairs> pairs = RegularPairs(nodes, degree, prng);
  return pairs ? Sound(nodes, *pairs) : RingTopology(nodes);
}

Graph RingTopology(std::uint32_t nodes) {
  return Sound(nodes, RingPairs(nodes));
}

Graph CompleteTopology(std::uint32_t nodes) {
  return Sound(nodes, CompletePairs(nodes));
}

}    // namespace dthrottle
