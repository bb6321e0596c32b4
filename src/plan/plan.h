// Everything that dthrottle-plan says of one graph, as data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "plan/analysis.h"
#include "plan/design.h"
#include "plan/graph_reader.h"

namespace dthrottle::plan {

inline constexpr double kSettled = 0.01;            // of the first difference, when rounds count as done
inline constexpr std::uint64_t kRoundsMin = 640;    // to simulate, for a standard error
inline constexpr std::uint64_t kRoundsMax = 100'000'000;
inline constexpr std::uint32_t kSuggestionsMax = 20;

struct Question {
  std::optional<double> gamma;                // none: the fastest cycle (27)
  double sigma = 1;                           // standard deviation of the change of a node's requests in a cycle
  std::optional<double> limit_total;          // sum of limits, requests per cycle, to foretell over-throttling
  std::optional<double> period_s;             // seconds a round takes
  std::optional<std::uint64_t> rounds;        // to simulate; 0: none; by itself: about a second's worth
  std::uint32_t suggestions = 3;              // links to add
  std::optional<Solver> solver = Solver{};    // none: no best weights
};

// What the best cycles of a graph make of it, whatever gamma is.
struct Best {
  double lambda2 = 0;
  double lambda_n = 0;
  double fastest_cycle = 0;         // (27)
  double convergence_factor = 0;    // (15) there
  double steadiest_cycle = 0;       // (31), Cov(v) = sigma^2 I
  double dispersion = 0;            // (20) there
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
  double dispersion = 0;                    // (20), Cov(v) = sigma^2 I
  double dispersion_eq24 = 0;               // (24), Cov(v) = gamma sigma^2 I
  double dispersion_eq25 = 0;               // (25), that for gamma -> 0
  std::optional<double> over_throttling;    // percent
  std::optional<Estimate> simulated;
  std::vector<double> centrality;     // (23), one a node
  std::vector<double> resistances;    // (2), n x n
  double resistance_total = 0;        // over pairs

  std::optional<Result<Design>> fastest;    // (33)
  std::optional<Result<Design>> robust;     // (34), (35)
  std::vector<Suggestion> suggestions;
};

// Fails if the graph is not connected, naming two nodes that do not reach each other. `prng` is for the simulation.
Result<Plan> MakePlan(NamedGraph graph, std::string source, const Question& question, Prng& prng);

// Links to add, one after another. Of the ten absent links that lower the total effective resistance most (exactly, by a
// rank-one change of L^+), the one with the smallest dispersion at the new graph's best cycle (31).
std::vector<Suggestion> SuggestLinks(const Graph& graph, double variance, std::uint32_t count);

}    // namespace dthrottle::plan
