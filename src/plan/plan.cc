#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "capacity/gain.h"
#include "plan/ends.h"

namespace dthrottle::plan {
namespace {

constexpr std::size_t kTried = 10;                       // absent links that are tried in full for each suggestion
constexpr std::uint64_t kSimulatedSteps = 20'000'000;    // of one node or link: about a second
constexpr std::uint64_t kRoundsAtMostByItself = 1'000'000;

Best BestOf(const Ends& ends) {
  Best best;
  best.lambda2 = ends.lambda_2;
  best.lambda_n = ends.lambda_n;
  best.fastest_cycle = FastestCycle(ends);
  best.convergence_factor = ConvergenceFactor(ends, best.fastest_cycle);
  return best;
}

Best BestOf(const Spectrum& spectrum, double variance) {
  Best best = BestOf(Ends(spectrum));
  best.steadiest_cycle = SteadiestCycle(spectrum);
  best.dispersion = Dispersion(spectrum, best.steadiest_cycle, variance);
  return best;
}

struct Candidate {
  double relief;    // how much the trace of L^+ falls
  std::uint32_t a, b;
};

// A graph to which links are added one by one: its eigenvalues, and L^+ and its square.
class Grown {
 public:
  Grown(const Graph& graph, const Spectrum& spectrum)
      : n_(graph.size()), spectrum_(spectrum), values_(spectrum.values), linked_(n_ * n_, false) {
    for (const WeightedLink& link : graph.links()) linked_[link.a * n_ + link.b] = linked_[link.b * n_ + link.a] = true;
    inverse_ = Apply(
        spectrum, [](double lambda) { return 1 / lambda; }, 1);
    squared_ = Apply(
        spectrum, [](double lambda) { return 1 / (lambda * lambda); }, 1);
  }

  // The absent links that help most. A link of weight 1 adds c c^T to L, with 1 and -1 at its ends, and takes
  // L^+ c c^T L^+ / (1 + c^T L^+ c) off L^+ (Sherman and Morrison). The trace of that is c^T (L^+)^2 c over
  // 1 + c^T L^+ c.
  std::vector<Candidate> Promising() const {
    std::vector<Candidate> all;
    for (std::uint32_t a = 0; a < n_; ++a) {
      for (std::uint32_t b = a + 1; b < n_; ++b) {
        if (!linked_[a * n_ + b]) all.push_back({Between(squared_, a, b) / (1 + Between(inverse_, a, b)), a, b});
      }
    }
    const auto count = static_cast<std::ptrdiff_t>(std::min(kTried, all.size()));
    std::ranges::partial_sort(all, all.begin() + count, std::greater(), &Candidate::relief);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

  // What a link would change.
  RankOneChange With(std::uint32_t a, std::uint32_t b) const {
    std::vector<double> parts;
    for (std::size_t k = 0; k < n_; ++k) parts.push_back(spectrum_.at(k, a) - spectrum_.at(k, b));
    for (const RankOneChange& change : changes_) parts = change.Coordinates(std::move(parts));
    return {values_, parts};
  }

  void Add(std::uint32_t a, std::uint32_t b, RankOneChange change) {
    linked_[a * n_ + b] = linked_[b * n_ + a] = true;
    values_ = ValuesOf(change);
    changes_.push_back(std::move(change));
    std::vector<double> w(n_), u(n_);    // L^+ c and (L^+)^2 c
    for (std::size_t i = 0; i < n_; ++i) {
      w[i] = inverse_[a * n_ + i] - inverse_[b * n_ + i];
      u[i] = squared_[a * n_ + i] - squared_[b * n_ + i];
    }
    const double all = 1 + w[a] - w[b];
    const double again = (u[a] - u[b]) / (all * all);
    for (std::size_t i = 0; i < n_; ++i) {
      for (std::size_t j = 0; j < n_; ++j) {
        inverse_[i * n_ + j] -= w[i] * w[j] / all;
        squared_[i * n_ + j] += again * w[i] * w[j] - (u[i] * w[j] + w[i] * u[j]) / all;
      }
    }
  }

  // The Laplacian's eigenvalues after a change.
  static std::vector<double> ValuesOf(const RankOneChange& change) {
    std::vector<double> values = change.values();
    values[0] = 0;
    return values;
  }

 private:
  double Between(const std::vector<double>& m, std::size_t a, std::size_t b) const {
    return m[a * n_ + a] + m[b * n_ + b] - 2 * m[a * n_ + b];
  }

  std::size_t n_;
  const Spectrum& spectrum_;              // before any link was added
  std::vector<RankOneChange> changes_;    // since then
  std::vector<double> values_;
  std::vector<bool> linked_;
  std::vector<double> inverse_, squared_;
};

// A node that the first one does not reach; none if it reaches all.
std::optional<std::uint32_t> Unreached(const Graph& graph) {
  std::vector<bool> reached(graph.size());
  std::vector<std::uint32_t> open{0};
  reached[0] = true;
  while (!open.empty()) {
    const std::uint32_t node = open.back();
    open.pop_back();
    for (const Graph::Neighbour& n : graph.neighbours(node)) {
      if (!reached[n.node]) open.push_back(n.node);
      reached[n.node] = true;
    }
  }
  const auto at = std::ranges::find(reached, false);
  return at == reached.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(at - reached.begin()));
}

std::uint64_t RoundsToSimulate(const Graph& graph, const Question& question) {
  return question.rounds.value_or(std::clamp<std::uint64_t>(kSimulatedSteps / (graph.size() + graph.links().size()),
                                                            kRoundsMin, kRoundsAtMostByItself));
}

// Fills in what only all eigenvalues tell.
void AddWhole(Plan& plan, const Graph& graph, const Spectrum& spectrum, double variance) {
  plan.best = BestOf(spectrum, variance);
  plan.dispersion = Dispersion(spectrum, plan.gamma, variance);
  plan.dispersion_eq24 = Dispersion(spectrum, plan.gamma, plan.gamma * variance);
  plan.dispersion_eq25 = SmallCycleDispersion(spectrum, variance);
  plan.centrality = Centrality(spectrum, plan.gamma);
  std::vector<double> all = EffectiveResistances(spectrum);
  plan.resistance_total = 0;
  for (const double r : all) plan.resistance_total += r / 2;
  for (const WeightedLink& link : graph.links()) plan.resistances.push_back(all[link.a * graph.size() + link.b]);
  if (graph.size() <= kMatrixNodesMax) plan.resistances_of_all = std::move(all);
}

void AddSimulation(Plan& plan, const Graph& graph, const Question& question, Prng& prng, const Going& going) {
  const std::uint64_t rounds = RoundsToSimulate(graph, question);
  if (!plan.stable || rounds == 0) return;
  // A simulation that has not settled, or whose batches depend on each other, would mislead.
  const std::uint64_t to_settle = plan.rounds_to_settle.value_or(kRoundsMax);
  if (to_settle > rounds / kBatchesMin) {
    plan.rounds_to_simulate = kBatchesMin * to_settle;
    return;
  }
  const std::vector<double> variances(graph.size(), question.sigma * question.sigma);
  plan.simulated = SimulateDispersion(graph, plan.gamma, variances, {rounds, to_settle}, prng, going);
}

// The same, as long as nobody has ended the work meanwhile.
Solver SolverThatGoes(Solver solver, std::string_view what, const Going& going) {
  solver.go_on = [what, going] { return going(what, std::nullopt); };
  return solver;
}

void AddOverThrottling(Plan& plan, const Graph& graph, const Question& question) {
  if (!question.limit_total || !plan.stable) return;
  if (!plan.whole() && !plan.simulated) return;
  const double dispersion = plan.whole() ? plan.dispersion : plan.simulated->mean;
  plan.over_throttling = ExpectedOverThrottling(graph.size(), dispersion, *question.limit_total);
}

}    // namespace

std::vector<Suggestion> SuggestLinks(const Graph& graph, const Spectrum& spectrum, double variance, std::uint32_t count,
                                     const Going& going) {
  std::vector<Suggestion> suggestions;
  if (count == 0) return suggestions;
  Grown grown(graph, spectrum);
  while (suggestions.size() < count) {
    if (going && !going("links to add", static_cast<double>(suggestions.size()) / count)) break;
    std::optional<Suggestion> chosen;
    std::optional<RankOneChange> change;
    for (const Candidate& candidate : grown.Promising()) {
      RankOneChange tried = grown.With(candidate.a, candidate.b);
      const Best with = BestOf(Spectrum{Grown::ValuesOf(tried), {}}, variance);
      if (chosen && with.dispersion >= chosen->with.dispersion) continue;
      chosen = Suggestion{candidate.a, candidate.b, with};
      change = std::move(tried);
    }
    if (!chosen) break;    // complete
    grown.Add(chosen->a, chosen->b, *std::move(change));
    suggestions.push_back(*chosen);
  }
  return suggestions;
}

namespace {

Result<void> CheckQuestion(const NamedGraph& named, const std::string& source, const Question& question) {
  const Graph& graph = named.graph;
  if (const auto apart = Unreached(graph)) {
    return Fail(fmt::format("{}: the graph is not connected: {} does not reach {}", source, named.names[0],
                            named.names[*apart]));
  }
  const bool whole = graph.size() <= kDenseNodesMax;
  if (!question.covariance.empty() && (question.covariance.size() != graph.size() * graph.size() || !whole)) {
    return Fail(fmt::format("{}: {} covariances for {} nodes; a row of one a node is needed for each, and at most {} nodes",
                            source, question.covariance.size(), graph.size(), kDenseNodesMax));
  }
  if (!question.variances.empty() && (question.variances.size() != graph.size() || !whole)) {
    return Fail(fmt::format("{}: {} variances for {} nodes; one a node is needed, and at most {}", source,
                            question.variances.size(), graph.size(), kDenseNodesMax));
  }
  return {};
}

}    // namespace

Result<Plan> MakePlan(NamedGraph named, std::string source, const Question& question, Prng& prng, const Going& watch) {
  if (const auto good = CheckQuestion(named, source, question); !good) return Fail(good.error().message);
  const Graph& graph = named.graph;
  const bool whole = graph.size() <= kDenseNodesMax;
  Plan plan;
  const auto going = [&](std::string_view what, std::optional<double> part) {
    if (watch && !watch(what, part)) plan.interrupted = true;
    return !plan.interrupted;
  };
  going("eigenvalues", std::nullopt);
  const Spectrum spectrum = whole ? Decompose(graph) : Spectrum{};
  const Result<Ends> ends = whole ? Result<Ends>(spectrum) : FindEnds(graph);
  if (!ends) return Fail(fmt::format("{}: {}", source, ends.error().message));
  const double variance = question.sigma * question.sigma;
  plan.best = BestOf(*ends);
  plan.gamma = question.gamma.value_or(plan.best.fastest_cycle);
  plan.sigma = question.sigma;
  plan.stable = Stable(plan.gamma, ends->lambda_n);
  plan.stable_below = 2 / ends->lambda_n;
  plan.stable_below_simple = StableGammaWithoutSpectrum(graph);
  plan.gdrl_gain_max = SpareBandwidthGainMax(graph);
  plan.convergence_factor = ConvergenceFactor(*ends, plan.gamma);
  if (plan.stable) plan.rounds_to_settle = RoundsTo(kSettled, plan.convergence_factor);
  if (plan.rounds_to_settle && question.period_s) {
    plan.seconds_to_settle = *question.period_s * static_cast<double>(*plan.rounds_to_settle);
  }
  if (whole) AddWhole(plan, graph, spectrum, variance);
  if (!question.covariance.empty()) {
    plan.dispersion_of_covariance = CovariantDispersion(spectrum, plan.gamma, question.covariance);
  }
  if (!question.variances.empty()) {
    plan.dispersion_of_variances = Dispersion(spectrum, plan.gamma, question.variances);
  }
  if (going("simulating", std::nullopt)) AddSimulation(plan, graph, question, prng, going);
  AddOverThrottling(plan, graph, question);
  if (whole) plan.suggestions = SuggestLinks(graph, spectrum, variance, question.suggestions, going);
  if (question.solver && going("fastest weights", std::nullopt)) {
    plan.fastest.emplace(FastestWeights(graph, plan.gamma, SolverThatGoes(*question.solver, "fastest weights", going)));
  }
  if (question.solver && going("most robust weights", std::nullopt)) {
    plan.robust.emplace(
        MostRobustWeights(graph, plan.gamma, variance, SolverThatGoes(*question.solver, "most robust weights", going)));
  }
  going("the end", std::nullopt);    // Ctrl-C since the last look; csdp ends of it too
  plan.source = std::move(source);
  plan.graph = std::move(named);
  return plan;
}

}    // namespace dthrottle::plan
