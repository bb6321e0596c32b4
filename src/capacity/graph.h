// The graph of hosts that exchange capacity: a weighted, undirected, simple graph, and its Laplacian.
//
// Nodes are limiters, numbered from 0. A link's weight multiplies what moves over it (DST section 2, eq (3)); GDRL has
// weights of 1 throughout. Nothing spectral lives here: that is the planner's work, and a daemon needs its own
// neighbours only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace dthrottle {

struct WeightedLink {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  double weight = 1;    // > 0, without a unit

  friend bool operator==(const WeightedLink&, const WeightedLink&) = default;
};

class Graph {
 public:
  struct Neighbour {
    std::uint32_t node;
    double weight;
  };

  // Fails on no nodes, an end that is no node, a loop, a link that is there twice (either way round), or a weight that
  // is not finite and above 0.
  static Result<Graph> Make(std::uint32_t nodes, std::vector<WeightedLink> links);

  std::uint32_t size() const { return static_cast<std::uint32_t>(begin_.size() - 1); }
  std::span<const WeightedLink> links() const { return links_; }    // as given to Make
  std::span<const Neighbour> neighbours(std::uint32_t node) const;

  // Neighbours of a node (GDRL's d_i), and the most that any node has.
  std::uint32_t Degree(std::uint32_t node) const;
  std::uint32_t DegreeMax() const;

  // Sum of the weights at a node, the Laplacian's diagonal l_ii, and the largest of them.
  double Strength(std::uint32_t node) const;
  double StrengthMax() const;

  // Whether every node reaches every other; both papers assume it. The same: lambda_2 > 0 (DST eq (1)).
  bool Connected() const;

  // L p, without the matrix: entry i is the sum over neighbours j of w_ij (p_i - p_j). `p` has size() entries.
  std::vector<double> TimesLaplacian(std::span<const double> p) const;
  // L itself, size() rows of size() entries.
  std::vector<double> Laplacian() const;

 private:
  std::vector<WeightedLink> links_;
  std::vector<Neighbour> neighbours_;    // by node
  std::vector<std::uint32_t> begin_;     // size() + 1 places in neighbours_
};

}    // namespace dthrottle
