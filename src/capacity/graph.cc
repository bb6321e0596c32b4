#include "capacity/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"

namespace dthrottle {

Result<Graph> Graph::Make(std::uint32_t nodes, std::vector<WeightedLink> links) {
  if (nodes == 0) return Fail("a graph needs a node");
  std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
  for (const WeightedLink& link : links) {
    const auto [a, b] = std::minmax(link.a, link.b);
    if (b >= nodes) return Fail(fmt::format("link {}-{}: nodes are 0 to {}", link.a, link.b, nodes - 1));
    if (a == b) return Fail(fmt::format("link {}-{}: a node cannot be linked to itself", a, b));
    if (!std::isfinite(link.weight) || link.weight <= 0) {
      return Fail(fmt::format("link {}-{}: the weight {} is not above 0", link.a, link.b, link.weight));
    }
    if (!seen.emplace(a, b).second) return Fail(fmt::format("link {}-{} is there twice", link.a, link.b));
  }
  Graph graph;
  graph.begin_.assign(nodes + 1, 0);
  for (const WeightedLink& link : links) {
    ++graph.begin_[link.a + 1];
    ++graph.begin_[link.b + 1];
  }
  for (std::uint32_t i = 0; i < nodes; ++i) graph.begin_[i + 1] += graph.begin_[i];
  graph.neighbours_.resize(2 * links.size());
  std::vector<std::uint32_t> next(graph.begin_.begin(), graph.begin_.end() - 1);
  for (const WeightedLink& link : links) {
    graph.neighbours_[next[link.a]++] = {link.b, link.weight};
    graph.neighbours_[next[link.b]++] = {link.a, link.weight};
  }
  graph.links_ = std::move(links);
  return graph;
}

std::span<const Graph::Neighbour> Graph::neighbours(std::uint32_t node) const {
  DT_CHECK(node < size());
  return std::span(neighbours_).subspan(begin_[node], begin_[node + 1] - begin_[node]);
}

std::uint32_t Graph::Degree(std::uint32_t node) const {
  return static_cast<std::uint32_t>(neighbours(node).size());
}

std::uint32_t Graph::DegreeMax() const {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < size(); ++i) most = std::max(most, Degree(i));
  return most;
}

double Graph::Strength(std::uint32_t node) const {
  double sum = 0;
  for (const Neighbour& n : neighbours(node)) sum += n.weight;
  return sum;
}

double Graph::StrengthMax() const {
  double most = 0;
  for (std::uint32_t i = 0; i < size(); ++i) most = std::max(most, Strength(i));
  return most;
}

bool Graph::Connected() const {
  std::vector<bool> reached(size());
  std::vector<std::uint32_t> open{0};
  reached[0] = true;
  std::size_t count = 1;
  while (!open.empty()) {
    const std::uint32_t node = open.back();
    open.pop_back();
    for (const Neighbour& n : neighbours(node)) {
      if (reached[n.node]) continue;
      reached[n.node] = true;
      ++count;
      open.push_back(n.node);
    }
  }
  return count == size();
}

std::vector<double> Graph::TimesLaplacian(std::span<const double> p) const {
  DT_CHECK(p.size() == size());
  std::vector<double> out(size(), 0.0);
  for (const WeightedLink& link : links_) {
    const double flow = link.weight * (p[link.a] - p[link.b]);
    out[link.a] += flow;
    out[link.b] -= flow;
  }
  return out;
}

std::vector<double> Graph::Laplacian() const {
  const std::size_t n = size();
  std::vector<double> matrix(n * n, 0.0);
  for (const WeightedLink& link : links_) {
    matrix[link.a * n + link.a] += link.weight;
    matrix[link.b * n + link.b] += link.weight;
    matrix[link.a * n + link.b] -= link.weight;
    matrix[link.b * n + link.a] -= link.weight;
  }
  return matrix;
}

}    // namespace dthrottle
