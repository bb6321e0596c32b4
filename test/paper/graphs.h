// What the paper tests share: graphs by name, rounds, comparison.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "capacity/gain.h"
#include "capacity/graph.h"
#include "capacity/indicator.h"
#include "capacity/transfer.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

inline Graph Named(std::string_view what) {
  Result<NamedGraph> graph = Generate(what);
  REQUIRE(graph);
  return graph->graph;
}

inline double Sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// Within `tolerance`, absolute below 1 and relative above.
inline bool Near(double value, double expected, double tolerance) {
  return std::abs(value - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

inline bool Near(std::span<const double> values, std::span<const double> expected, double tolerance) {
  if (values.size() != expected.size()) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!Near(values[i], expected[i], tolerance)) return false;
  }
  return true;
}

inline std::vector<double> Indicate(const Indicator& indicator, std::span<const double> demands,
                                    std::span<const double> shares) {
  std::vector<double> q;
  for (std::size_t i = 0; i < demands.size(); ++i) q.push_back(indicator.Value({demands[i], shares[i]}));
  return q;
}

inline bool Linked(const Graph& graph, std::uint32_t a, std::uint32_t b) {
  return std::ranges::any_of(graph.neighbours(a), [b](const Graph::Neighbour& n) { return n.node == b; });
}

// GDRL eq (9) for one indicator on all nodes, which have these loads at time 0.
inline double GainMax(const Graph& graph, const Indicator& indicator, std::span<const Load> loads) {
  double worst = -std::numeric_limits<double>::infinity();
  for (const Load& load : loads) worst = std::max(worst, indicator.Value(load));
  std::vector<double> slopes;
  for (const Load& load : loads) slopes.push_back(indicator.InverseSlope(load.demand, worst));
  return GdrlGainMax(graph, slopes);
}

// One round of DST eq (3), GDRL eq (7), as printed: shares may fall below 0.
inline void Round(const Graph& graph, const Indicator& indicator, std::span<const double> demands, double gain,
                  std::span<double> shares) {
  Apply(graph, Flows(graph, Indicate(indicator, demands, shares), gain), shares);
}

}    // namespace dthrottle::plan
