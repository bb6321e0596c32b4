// The best weights for given links, by semidefinite programming: DST section 5.2.
//
// csdp solves; whatever it answers is judged here from scratch: the value is that of the weights as they are, and the
// bound below is proven from the answer without trust in the solver's tolerances. The difference is the gap.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "capacity/graph.h"

namespace dthrottle::plan {

// What may be asked: csdp's memory grows with the cube of the nodes, its time faster.
inline constexpr std::uint32_t kDesignNodesMax = 100;
inline constexpr std::size_t kDesignLinksMax = 500;

struct Solver {
  std::string program = "csdp";                   // found in PATH unless it has a slash
  std::chrono::milliseconds patience{120'000};    // for one problem
  std::function<bool()> go_on;                    // asked right before it runs; empty: it runs
};

struct Design {
  std::vector<double> weights;    // one a link of the graph, >= 0
  double value = 0;               // Phi_cr (15), or Phi_ss (20), with these weights
  double bound = 0;               // no weights >= 0 are better than this
  double gap() const { return value - bound; }
};

// The fastest weights, DST eq (33): the smallest Phi_cr at this gamma. The graph's own weights do not matter.
// Weights are proportional to 1/gamma, the value does not depend on it. Fails where csdp is missing or gives up.
// REQUIRES: connected, two nodes and more, gamma > 0.
Result<Design> FastestWeights(const Graph& graph, double gamma, const Solver& solver);

// The most robust weights, DST eq (34): the smallest Phi_ss at this gamma for Cov(v) = variance I.
//
// Departure from (35), which bounds (L - gamma/2 L^2)^+ by one block of 3n and n(n+1)/2 unknowns: with U = gamma L,
// 2 / (u (2 - u)) = 1/u + 1/(2 - u), so Phi_ss = variance/2 tr(U^+ + (2I - U)^-1) away from the constant vector. Traces
// of inverses are bounded a few columns at a time, with a tenth of the unknowns. The weights are the same. The
// paper's objective is off by a constant for gamma other than 1: by its own LMI (38) what is to be subtracted is
// 1^T Cov 1 / (2n), not over 2 n gamma^2.
Result<Design> MostRobustWeights(const Graph& graph, double gamma, double variance, const Solver& solver);

}    // namespace dthrottle::plan
