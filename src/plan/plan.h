// Everything that dthrottle-plan says of one graph, as data.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "plan/analysis.h"
#include "plan/design.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

// The largest graph whose matrix is decomposed. Above that only the ends of its spectrum are known, see FindEnds.
inline constexpr std::uint32_t kDenseNodesMax = 1000;
inline constexpr std::uint32_t kMatrixNodesMax = 100;    // whose resistances between all pairs are kept
inline constexpr double kSettled = 0.01;                 // of the first difference, when rounds count as done
inline constexpr std::uint64_t kRoundsMin = 640;         // to simulate, for a standard error
inline constexpr std::uint64_t kRoundsMax = 100'000'000;
inline constexpr std::uint32_t kSuggestionsMax = 20;

struct Question {
  std::optional<double> gamma;                // none: the fastest cycle (27)
  double sigma = 1;                           // standard deviation of the change of a node's requests in a cycle
  std::vector<double> variances;              // of each node's change, for another Phi_ss; empty: none
  std::vector<double> covariance;             // the same with a row for each node, one after another; empty: none
  std::optional<double> limit_total;          // sum of limits, requests per cycle, to foretell over-throttling
  std::optional<double> period_s;             // seconds a round takes
  std::optional<std::uint64_t> rounds;        // to simulate; 0: none; by itself: about a second's worth
  std::uint32_t suggestions = 3;              // links to add
  std::optional<Solver> solver = Solver{};    // none: no best weights
};

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();    // not computed

// What the best cycles of a graph make of it, whatever gamma is.
struct Best {
  double lambda2 = 0;
  double lambda_n = 0;
  double fastest_cycle = 0;             // (27)
  double convergence_factor = 0;        // (15) there
  double steadiest_cycle = kUnknown;    // (31), Cov(v) = sigma^2 I; needs all eigenvalues
  double dispersion = kUnknown;         // (20) there
};

struct Suggestion {
  std::uint32_t a, b;
  Best with;    // the graph with this link and those suggested before it, at weight 1
};

struct Plan {
  std::string source;
  NamedGraph graph;
  double gamma = 0;
  double sigma = 1;
  Best best;

  bool stable = false;                              // Lemma 2
  double stable_below = 0;                          // 2 / lambda_n
  double stable_below_simple = 0;                   // the bound that a daemon computes without eigenvalues
  double gdrl_gain_max = 0;                         // GDRL (15)
  double convergence_factor = 0;                    // (15)
  std::optional<std::uint64_t> rounds_to_settle;    // to kSettled
  std::optional<double> seconds_to_settle;
  double dispersion = kUnknown;                     // (20), Cov(v) = sigma^2 I
  std::optional<double> dispersion_of_variances;    // (20), Cov(v) = diag(variances)
  std::optional<double> dispersion_of_covariance;    // (20), Cov(v) as given
  double dispersion_eq24 = kUnknown;                // (24), Cov(v) = gamma sigma^2 I
  double dispersion_eq25 = kUnknown;                // (25), that for gamma -> 0
  std::optional<double> over_throttling;            // percent
  std::optional<Estimate> simulated;
  std::uint64_t rounds_to_simulate = 0;      // that a figure takes, where there were to be fewer
  std::vector<double> centrality;            // (23), one a node; empty: not computed
  std::vector<double> resistances;           // (2), one a link; empty: not computed
  std::vector<double> resistances_of_all;    // (2), n x n; empty unless there are few nodes
  double resistance_total = kUnknown;        // over pairs
  bool interrupted = false;                  // what follows from there on was not reached

  std::optional<Result<Design>> fastest;    // (33)
  std::optional<Result<Design>> robust;     // (34), (35)
  std::vector<Suggestion> suggestions;

  bool whole() const { return !centrality.empty(); }    // whether all eigenvalues are known
};

// Fails if the graph is not connected, naming two nodes that do not reach each other, or if its eigenvalues are not
// found. `prng` is for the simulation. Once `going` says no, what has not begun is left out.
Result<Plan> MakePlan(NamedGraph graph, std::string source, const Question& question, Prng& prng,
                      const Going& going = {});

// Links to add, one after another. Each is, among the ten absent links that lower the total effective resistance most
// (exactly, by a rank-one change of L^+), the one with the smallest dispersion at the new graph's best cycle (31).
// `spectrum` is the graph's.
std::vector<Suggestion> SuggestLinks(const Graph& graph, const Spectrum& spectrum, double variance, std::uint32_t count,
                                     const Going& going = {});

}    // namespace dthrottle::plan
