// DST: rounds of its four nodal cases, Algorithms 1 and 2, over-throttling.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "capacity/divide.h"
#include "capacity/fairness.h"
#include "capacity/indicator.h"
#include "capacity/transfer.h"
#include "io/number_option.h"
#include "plan/model/model.h"
#include "plan/plan.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {
namespace {

struct DstOptions {
  std::string graph;
  Values demands, limits;
  double gamma = 0;
  int nodal_case = 1;
  std::uint32_t rounds = 10;
};

// The measure of a case; none for case IV, whose measure is the limit itself.
const Indicator* IndicatorOf(int nodal_case) {
  const std::array<const Indicator*, 4> indicators{&ThrottledAmount(), &ThrottledRatio(), &LogRatio(), nullptr};
  return indicators[static_cast<std::size_t>(nodal_case - 1)];
}

// The gamma below which rounds converge, 2 / lambda_max(L diag(1/d)): d is 1 in case I (Lemma 2) and the demand in
// case II. Case III is linear near its equilibrium only, where limits are in proportion to demands; d is the limit
// there. Case IV has none, since it drives limits apart.
double StableBelow(const Graph& graph, const DstOptions& options) {
  const std::size_t n = graph.size();
  const double scale = options.nodal_case == 3
                           ? std::accumulate(options.limits.begin(), options.limits.end(), 0.0) /
                                 std::accumulate(options.demands.begin(), options.demands.end(), 0.0)
                           : 1;
  Values matrix = graph.Laplacian();    // its symmetric form, D^-1/2 L D^-1/2
  for (std::size_t i = 0; options.nodal_case > 1 && i < n * n; ++i) {
    matrix[i] /= scale * std::sqrt(options.demands[i / n] * options.demands[i % n]);
  }
  return 2 / Decompose(matrix, n).values.back();
}

Result<Table> Dst(const DstOptions& options) {
  if (options.limits.size() != options.demands.size()) return Fail("there must be as many limits as demands");
  const auto named = ModelGraph(options.graph, options.demands.size(), options.rounds);
  if (!named) return tl::unexpected(named.error());
  const Graph& graph = named->graph;
  if (graph.size() > kDenseNodesMax) return Fail(fmt::format("at most {} nodes are allowed", kDenseNodesMax));
  const Indicator* indicator = IndicatorOf(options.nodal_case);
  const bool above_zero = std::ranges::all_of(options.demands, [](double r) { return r > 0; });
  if (options.nodal_case > 1 && !above_zero) return Fail("this case needs demands above 0");
  Table table;
  table.facts = {{"gamma", options.gamma}};
  if (indicator != nullptr) table.facts.emplace_back("stable_below", StableBelow(graph, options));
  table.columns = {"round"};
  AddColumns(table, "x", named->names);
  AddColumns(table, "p", named->names);
  table.columns.push_back("sum");
  Values limits = options.limits;
  for (std::uint32_t k = 0;; ++k) {
    if (const auto fine = CheckRound(limits, k); !fine) return tl::unexpected(fine.error());
    Values measures = limits;
    for (std::size_t i = 0; indicator != nullptr && i < limits.size(); ++i) {
      const Load load{options.demands[i], limits[i]};
      if (!indicator->Defined(load)) {
        return Fail(fmt::format("round {}: node {} has the limit {}, for which this case has no measure", k,
                                named->names[i], limits[i]));
      }
      measures[i] = indicator->Value(load);
    }
    Values cells = limits;
    cells.insert(cells.end(), measures.begin(), measures.end());
    cells.push_back(std::accumulate(limits.begin(), limits.end(), 0.0));
    table.rows.push_back({static_cast<double>(k), std::move(cells)});
    if (k == options.rounds) return table;
    if (indicator != nullptr) Apply(graph, Flows(graph, measures, options.gamma), limits);
    if (indicator == nullptr) AllowedAmountRound(graph, options.demands, options.gamma, limits);
  }
}

Result<Table> Divided(const Values& requests, double limit) {
  if (std::ranges::any_of(requests, [](double r) { return r < 0; })) return Fail("no request may be below 0");
  const ClientLimits ratio = DivideByRatio(requests, limit), level = DivideByLevel(requests, limit);
  Table table;
  table.facts = {{"level", level.level}, {"reserve", level.reserve}};
  table.columns = {"application", "request", "algorithm_1", "algorithm_2"};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    table.rows.push_back({static_cast<double>(i), {requests[i], ratio.limits[i], level.limits[i]}});
  }
  return table;
}

Result<Table> OverThrottled(const std::vector<std::string>& cycles) {
  Table table;
  table.columns = {"cycle", "accepted", "ideal", "percent"};
  OverThrottling all;
  for (const std::string& cycle : cycles) {
    const std::vector<std::string> sides = Split(cycle, ':');
    if (sides.size() != 2) return Fail(fmt::format("--cycle {}: LIMITS:REQUESTS is wanted", cycle));
    const auto limits = Numbers(sides[0], "--cycle"), requests = Numbers(sides[1], "--cycle");
    if (!limits || !requests) return tl::unexpected(limits ? requests.error() : limits.error());
    if (limits->size() != requests->size()) return Fail(fmt::format("--cycle {}: as many limits as requests", cycle));
    OverThrottling one;
    one.Add(*limits, *requests);
    all.Add(*limits, *requests);
    table.rows.push_back({static_cast<double>(table.rows.size()), {one.accepted(), one.ideal(), one.percent()}});
  }
  table.facts = {{"percent", all.percent()}};
  return table;
}

}    // namespace

void AddDstModels(CLI::App& model, const Answer& answer) {
  CLI::App* dst = model.add_subcommand("dst", "DST: rounds of nodal cases 1 to 4, and their stability limit");
  const auto options = std::make_shared<DstOptions>();
  dst->add_option("GRAPH", options->graph, "A file of links or DOT, \"-\", or a graph by name")->required();
  dst->add_option("--case", options->nodal_case, "1 throttled amount, 2 ratio, 3 logarithm, 4 allowed amount")
      ->check(CLI::Range(1, 4))
      ->capture_default_str();
  dst->add_option("--demands,-r", options->demands, "r: requests a cycle, one a node")
      ->delimiter(',')
      ->check(AnyNumber())
      ->required();
  dst->add_option("--limits,-x", options->limits, "x(0): limits at first, one a node")
      ->delimiter(',')
      ->check(AnyNumber())
      ->required();
  dst->add_option("--gamma,-g", options->gamma, "The update cycle")->check(NumberFrom(0, 1e9))->required();
  dst->add_option("--rounds", options->rounds, "Rounds")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  dst->callback([=] { answer(Dst(*options)); });

  struct Division {
    Values requests;
    double limit = 0;
  };
  CLI::App* divide = model.add_subcommand("divide", "DST: a node's limit among its applications, Algorithms 1 and 2");
  const auto division = std::make_shared<Division>();
  divide->add_option("--requests", division->requests, "One an application")
      ->delimiter(',')
      ->check(AnyNumber())
      ->required();
  divide->add_option("--limit", division->limit, "Of the node")->check(NumberFrom(0, 1e18))->required();
  divide->callback([=] { answer(Divided(division->requests, division->limit)); });

  CLI::App* over = model.add_subcommand("over-throttling", "DST: how much less a fleet lets through than one limiter");
  const auto cycles = std::make_shared<std::vector<std::string>>();
  over->add_option("--cycle", *cycles, "LIMITS:REQUESTS of a cycle, one a node with commas between; once a cycle")
      ->required();
  over->callback([=] { answer(OverThrottled(*cycles)); });
}

}    // namespace dthrottle::plan
