#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "capacity/gain.h"

namespace dthrottle::plan {
namespace {

constexpr std::size_t kTried = 10;                       // absent links that are tried in full for each suggestion
constexpr std::uint64_t kSimulatedSteps = 20'000'000;    // of one node or link: about a second
constexpr std::uint64_t kRoundsAtMostByItself = 1'000'000;

Best BestOf(const Spectrum& spectrum, double variance) {
  Best best;
  best.lambda2 = Lambda2(spectrum);
  best.lambda_n = LambdaN(spectrum);
  best.fastest_cycle = FastestCycle(spectrum);
  best.convergence_factor = ConvergenceFactor(spectrum, best.fastest_cycle);
  best.steadiest_cycle = SteadiestCycle(spectrum);
  best.dispersion = Dispersion(spectrum, best.steadiest_cycle, variance);
  return best;
}

Graph With(const Graph& graph, const Link& link) {
  std::vector<Link> links(graph.links().begin(), graph.links().end());
  links.push_back(link);
  return *Graph::Make(graph.size(), std::move(links));    // absent before, so it can be added
}

struct Candidate {
  double relief;    // how much the trace of L^+ falls
  Link link;
};

// A link of weight 1 adds c c^T to L, with 1 and -1 at its ends, and takes L^+ c c^T L^+ / (1 + c^T L^+ c) off L^+
// (Sherman and Morrison). The trace of that is c^T (L^+)^2 c over 1 + c^T L^+ c.
std::vector<Candidate> Promising(const Graph& graph, const Spectrum& spectrum) {
  const std::size_t n = graph.size();
  const auto inverse = Apply(
      spectrum, [](double lambda) { return 1 / lambda; }, 1);
  const auto squared = Apply(
      spectrum, [](double lambda) { return 1 / (lambda * lambda); }, 1);
  const auto between = [n](const std::vector<double>& m, std::size_t a, std::size_t b) {
    return m[a * n + a] + m[b * n + b] - 2 * m[a * n + b];
  };
  std::vector<Candidate> all;
  for (std::uint32_t a = 0; a < n; ++a) {
    std::vector<bool> linked(n);
    for (const Graph::Neighbour& neighbour : graph.neighbours(a)) linked[neighbour.node] = true;
    for (std::uint32_t b = a + 1; b < n; ++b) {
      if (linked[b]) continue;
      all.push_back({between(squared, a, b) / (1 + between(inverse, a, b)), {a, b, 1}});
    }
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(kTried, all.size()));
  std::ranges::partial_sort(all, all.begin() + count, std::greater(), &Candidate::relief);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

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

}    // namespace

std::vector<Suggestion> SuggestLinks(const Graph& graph, double variance, std::uint32_t count) {
  std::vector<Suggestion> suggestions;
  Graph grown = graph;
  while (suggestions.size() < count) {
    const Spectrum spectrum = Decompose(grown);
    std::optional<Suggestion> chosen;
    for (const auto& [relief, link] : Promising(grown, spectrum)) {
      std::vector<double> ends(grown.size(), 0.0);
      ends[link.a] = 1;
      ends[link.b] = -1;
      Spectrum after{ValuesAfterRankOne(spectrum, ends), {}};
      after.values[0] = 0;
      const Best with = BestOf(after, variance);
      if (!chosen || with.dispersion < chosen->with.dispersion) chosen = Suggestion{link.a, link.b, with};
    }
    if (!chosen) break;    // complete
    grown = With(grown, {chosen->a, chosen->b, 1});
    suggestions.push_back(*chosen);
  }
  return suggestions;
}

Result<Plan> MakePlan(NamedGraph named, std::string source, const Question& question, Prng& prng) {
  const Graph& graph = named.graph;
  if (const auto apart = Unreached(graph)) {
    return Fail(fmt::format("{}: the graph is not connected: {} does not reach {}", source, named.names[0],
                            named.names[*apart]));
  }
  const Spectrum spectrum = Decompose(graph);
  const double variance = question.sigma * question.sigma;
  Plan plan;
  plan.best = BestOf(spectrum, variance);
  plan.gamma = question.gamma.value_or(plan.best.fastest_cycle);
  plan.sigma = question.sigma;
  plan.stable = Stable(plan.gamma, LambdaN(spectrum));
  plan.stable_below = 2 / LambdaN(spectrum);
  plan.stable_below_simple = StableGammaWithoutSpectrum(graph);
  plan.gdrl_gain_max = SpareBandwidthGainMax(graph);
  plan.convergence_factor = ConvergenceFactor(spectrum, plan.gamma);
  plan.rounds_to_settle = RoundsTo(kSettled, plan.convergence_factor);
  if (plan.rounds_to_settle && question.period_s) {
    plan.seconds_to_settle = *question.period_s * static_cast<double>(*plan.rounds_to_settle);
  }
  plan.dispersion = Dispersion(spectrum, plan.gamma, variance);
  plan.dispersion_eq24 = Dispersion(spectrum, plan.gamma, plan.gamma * variance);
  plan.dispersion_eq25 = SmallCycleDispersion(spectrum, variance);
  if (question.limit_total && plan.stable) {
    plan.over_throttling = ExpectedOverThrottling(graph.size(), plan.dispersion, *question.limit_total);
  }
  plan.centrality = Centrality(spectrum, plan.gamma);
  plan.resistances = EffectiveResistances(spectrum);
  for (const double r : plan.resistances) plan.resistance_total += r / 2;
  const std::uint64_t rounds = RoundsToSimulate(graph, question);
  if (plan.stable && rounds > 0) {
    plan.simulated = SimulateDispersion(graph, plan.gamma, std::vector<double>(graph.size(), variance), rounds, prng);
  }
  if (question.solver) {
    plan.fastest = FastestWeights(graph, plan.gamma, *question.solver);
    plan.robust = MostRobustWeights(graph, plan.gamma, variance, *question.solver);
  }
  plan.suggestions = SuggestLinks(graph, variance, question.suggestions);
  plan.source = std::move(source);
  plan.graph = std::move(named);
  return plan;
}

}    // namespace dthrottle::plan
