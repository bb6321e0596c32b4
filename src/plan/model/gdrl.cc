// GDRL: rounds of all links at once, of one link at a time, and with demands that are estimated by the low-pass filter.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "base/prng.h"
#include "capacity/demand.h"
#include "capacity/fairness.h"
#include "capacity/gain.h"
#include "capacity/indicator.h"
#include "capacity/transfer.h"
#include "io/number_option.h"
#include "plan/model/model.h"

namespace dthrottle::plan {
namespace {

struct GdrlOptions {
  std::string graph, indicator = "spare-bandwidth";
  Values demands, start;
  double capacity = 0, gain = 0, part = 1, alpha = 0;    // 0: not given
  std::vector<std::size_t> pairs;
  std::uint32_t rounds = 10;
  std::uint64_t seed = 1;
};

double Sum(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

class Limiters {
 public:
  Limiters(NamedGraph named, const GdrlOptions& options, const Indicator& indicator)
      : named_(std::move(named)),
        options_(options),
        indicator_(indicator),
        shares_(options.start),
        prng_(options.seed) {
    if (shares_.empty()) shares_.assign(size(), options.capacity / static_cast<double>(size()));
    if (options.alpha > 0) estimates_.assign(size(), DemandEstimate(options.alpha, 0));
  }

  Result<Table> Run() {
    const auto at_first = Measures(options_.demands, 0);
    if (!at_first) return tl::unexpected(at_first.error());
    Values slopes;    // at the worst of the first measures, see GdrlGainMax
    for (const double demand : options_.demands) {
      slopes.push_back(indicator_.InverseSlope(demand, *std::ranges::max_element(*at_first)));
    }
    double weight_max = 0;
    for (const WeightedLink& link : named_.graph.links()) weight_max = std::max(weight_max, link.weight);
    const double bound =
        options_.pairs.empty() ? GdrlGainMax(named_.graph, slopes) : PairwiseGainMax(slopes, weight_max);
    const double gain = options_.gain > 0 ? options_.gain : options_.part * bound;
    Table table;
    table.facts = {{"gain", gain}, {"gain_max", bound}, {"equilibrium", Equilibrium(*at_first)}};
    table.columns = {"round"};
    AddColumns(table, "C", named_.names);
    AddColumns(table, "q", named_.names);
    for (const char* column : {"sum", "jain", "spread"}) table.columns.emplace_back(column);
    if (!estimates_.empty()) table.columns.emplace_back("jain_measured");
    const std::size_t rounds = options_.pairs.empty() ? options_.rounds : options_.pairs.size();
    for (std::size_t round = 0;; ++round) {
      if (const auto fine = CheckRound(shares_, round); !fine) return tl::unexpected(fine.error());
      const auto q = Measures(options_.demands, round), seen = Measures(Known(), round);
      if (!q || !seen) return tl::unexpected(q ? seen.error() : q.error());
      AddRow(table, round, *q, *seen);
      if (round == rounds) return table;
      Exchange(*seen, gain, round);
    }
  }

 private:
  std::size_t size() const { return named_.graph.size(); }

  // The measure that all have in the end, between the first ones: there the shares that have it sum to the capacity.
  double Equilibrium(const Values& at_first) const {
    auto [low, high] = std::pair(std::ranges::min(at_first), std::ranges::max(at_first));
    for (int i = 0; i < 200; ++i) {    // doubles have no more bits
      const double middle = low + (high - low) / 2;
      double needed = 0;    // falls with the measure
      for (const double demand : options_.demands) needed += indicator_.Capacity(demand, middle);
      (needed > Sum(shares_) ? low : high) = middle;
    }
    return low + (high - low) / 2;
  }

  // Demands as the limiters know them: in each slot at most one request comes, with the demand's chance.
  Values Known() {
    if (estimates_.empty()) return options_.demands;
    Values known;
    for (std::size_t i = 0; i < size(); ++i) known.push_back(estimates_[i].value());
    return known;
  }

  Result<Values> Measures(const Values& demands, std::size_t round) const {
    Values q;
    for (std::size_t i = 0; i < size(); ++i) {
      const Load load{demands[i], shares_[i]};
      if (!indicator_.Defined(load)) {
        return Fail(fmt::format("round {}: {} is not defined for node {}, with a demand of {} and a share of {}", round,
                                options_.indicator, named_.names[i], demands[i], shares_[i]));
      }
      q.push_back(indicator_.Value(load));
    }
    return q;
  }

  void Exchange(const Values& q, double gain, std::size_t round) {
    Values flows = Flows(named_.graph, q, gain);
    if (!options_.pairs.empty()) {
      for (std::size_t link = 0; link < flows.size(); ++link) flows[link] *= link == options_.pairs[round] ? 1 : 0;
    }
    Apply(named_.graph, flows, shares_);
    for (std::size_t i = 0; i < estimates_.size(); ++i) {
      estimates_[i].Observe(static_cast<double>(prng_.Next() >> 11) * 0x1p-53 < options_.demands[i] ? 1 : 0);
    }
  }

  void AddRow(Table& table, std::size_t round, const Values& q, const Values& seen) const {
    Values cells = shares_;
    cells.insert(cells.end(), q.begin(), q.end());
    for (const double value : {Sum(shares_), JainIndex(q), Spread(q)}) cells.push_back(value);
    if (!estimates_.empty()) cells.push_back(JainIndex(seen));
    table.rows.push_back({static_cast<double>(round), std::move(cells)});
  }

  NamedGraph named_;
  const GdrlOptions& options_;
  const Indicator& indicator_;
  Values shares_;
  std::vector<DemandEstimate> estimates_;
  Prng prng_;
};

Result<Table> Gdrl(const GdrlOptions& options) {
  auto named =
      ModelGraph(options.graph, options.demands.size(), std::max<std::size_t>(options.rounds, options.pairs.size()));
  if (!named) return tl::unexpected(named.error());
  const Indicator* indicator = FindIndicator(options.indicator);
  if (indicator == nullptr) return Fail(fmt::format("--indicator {}: there is none of that name", options.indicator));
  if (!options.start.empty() && options.start.size() != options.demands.size()) {
    return Fail("--start: there must be as many shares as demands");
  }
  if (options.start.empty() && options.capacity == 0) return Fail("--capacity or --start is needed");
  const std::size_t links = named->graph.links().size();
  for (const std::size_t link : options.pairs) {
    if (link >= links) return Fail(fmt::format("--pairs: there is no link {}; they are 0 to {}", link, links - 1));
  }
  const bool chances = std::ranges::all_of(options.demands, [](double d) { return d <= 1; });
  if (options.alpha > 0 && !chances) return Fail("--filter: demands are chances of a request in a slot, at most 1");
  if (std::ranges::any_of(options.demands, [](double d) { return d < 0; })) return Fail("no demand may be below 0");
  return Limiters(*std::move(named), options, *indicator).Run();
}

Result<Table> Fairness(const Values& values) {
  Table table;
  table.facts = {{"jain", JainIndex(values)}, {"spread", Spread(values)}};
  return table;
}

}    // namespace

void AddGdrlModels(CLI::App& model, const Answer& answer) {
  CLI::App* gdrl =
      model.add_subcommand("gdrl", "GDRL: rounds of all links, of one at a time, or with filtered demands");
  const auto options = std::make_shared<GdrlOptions>();
  gdrl->add_option("GRAPH", options->graph, "A file of links or DOT, \"-\", or a graph by name")->required();
  gdrl->add_option("--demands,-l", options->demands, "lambda: requests/s, one a node")->delimiter(',')
      ->check(AnyNumber())
      ->required();
  gdrl->add_option("--capacity,-C", options->capacity, "Of all, in equal shares at first")
      ->check(NumberFrom(1e-9, 1e18));
  gdrl->add_option("--start", options->start, "Instead: shares at first, one a node")
      ->delimiter(',')
      ->check(AnyNumber());
  std::vector<std::string> names{"spare-bandwidth"};
  for (const Indicator* indicator : Indicators()) names.emplace_back(indicator->name());
  gdrl->add_option("--indicator", options->indicator, "What is made equal")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  CLI::Option* gain = gdrl->add_option("--gain,-e", options->gain, "eta; by itself the bound (9), pairwise (17)");
  gain->check(NumberFrom(1e-12, 1e9));
  gdrl->add_option("--part", options->part, "Instead: the part of the bound to take")
      ->check(NumberFrom(1e-9, 1e3))
      ->excludes(gain);
  gdrl->add_option("--rounds", options->rounds, "Rounds")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  gdrl->add_option("--pairs", options->pairs, "One link a round: the numbers of these links, from 0")->delimiter(',');
  gdrl->add_option("--filter", options->alpha,
                   "alpha of the low-pass filter, which starts at 0; else demands are known")
      ->check(NumberFrom(1e-9, 1));
  gdrl->add_option("--seed", options->seed, "Seed of the requests that the filter sees")->capture_default_str();
  gdrl->callback([=] { answer(Gdrl(*options)); });

  CLI::App* jain = model.add_subcommand("jain", "GDRL: Jain's index of numbers, and their spread");
  const auto values = std::make_shared<Values>();
  jain->add_option("--values", *values, "Numbers")->delimiter(',')->check(AnyNumber())->required();
  jain->callback([=] { answer(Fairness(*values)); });
}

}    // namespace dthrottle::plan
