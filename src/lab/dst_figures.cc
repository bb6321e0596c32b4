// Figures 5 and 7 of DST.
//
// The print says that 1,000 clients were "randomly assigned" and the usage curve "randomly generated". The two values
// of over-throttling that it has follow from its Phi_ss if requests in all stay at the limit and a server's requests
// change by the 372nd part of the limit in a cycle (DST section 6, Table 4): it is the only such number for both. So
// here load moves between servers at that pace, among clients of unequal weight, while the sum wavers about the limit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/prng.h"
#include "capacity/divide.h"
#include "capacity/dst_graphs.h"
#include "capacity/fairness.h"
#include "lab/capacity_fleet.h"
#include "lab/figure_parts.h"
#include "lab/figures.h"
#include "lab/sampling.h"
#include "share/capacity/part_table.h"

namespace dthrottle::lab {
namespace {

constexpr std::size_t kServers = 10, kClientsEach = 100;
constexpr int kWarmUp = 1000, kCycles = 1000;
constexpr double kGamma = 0.02;
constexpr double kLimit = 3720;    // requests a cycle, all servers
// A client's weight is log-normal: the deviation of its logarithm, and which part of that is forgotten in a cycle. And
// what a server's clients have in common is normal about 1, never below 0.
constexpr double kClientDeviation = 1, kClientForget = 0.0005;
constexpr double kServerDeviation = 0.6, kServerForget = 0.001;
// All requests, against the limit: deviation, and what is forgotten of it in a cycle.
constexpr double kTotalDeviation = 0.01, kTotalForget = 0.05;

// A value that wanders about 0 with deviation 1.
class Wander {
 public:
  Wander(double forget, Prng& prng) : keep_(1 - forget), noise_(std::sqrt(1 - keep_ * keep_)), value_(Normal(prng)) {}

  double value() const { return value_; }
  void Step(Prng& prng) { value_ = keep_ * value_ + noise_ * Normal(prng); }

 private:
  double keep_, noise_, value_;
};

// Requests of the servers, cycle by cycle.
class Usage {
 public:
  // `mean`: of all requests a cycle.
  Usage(double mean, Prng& prng) : mean_(mean), total_(kTotalForget, prng) {
    for (std::size_t i = 0; i < kServers; ++i) servers_.emplace_back(kServerForget, prng);
    for (std::size_t i = 0; i < kServers * kClientsEach; ++i) clients_.emplace_back(kClientForget, prng);
  }

  Values Requests() const {
    Values requests(kServers, 0);
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      const double server = std::max(0.0, 1 + kServerDeviation * servers_[i / kClientsEach].value());
      requests[i / kClientsEach] += server * std::exp(kClientDeviation * clients_[i].value());
    }
    const double scale = mean_ * (1 + kTotalDeviation * total_.value()) / Sum(requests);
    for (double& value : requests) value *= scale;
    return requests;
  }
  void Step(Prng& prng) {
    total_.Step(prng);
    for (Wander& server : servers_) server.Step(prng);
    for (Wander& client : clients_) client.Step(prng);
  }

 private:
  double mean_;
  std::vector<Wander> servers_, clients_;
  Wander total_;
};

// The paper's, where options say nothing.
struct Setup {
  double gamma, mean;
  int cycles;

  explicit Setup(const FigureOptions& options)
      : gamma(options.gain.value_or(kGamma)),
        mean(kLimit * options.load.value_or(1)),
        cycles(static_cast<int>(options.rounds.value_or(kCycles))) {}
};

// One of the two graphs, and how it fares.
struct Fleet {
  Graph graph;
  Values shares = Values(kServers, kLimit / kServers);
  OverThrottling over;

  explicit Fleet(int number) : graph(*GraphOf(kDstNodes, DstPairs(number))) {}

  void Round(const Values& requests, double gamma) { lab::Round(graph, Indicate(requests, shares), gamma, shares); }

  // Accepted requests of a cycle.
  double Accept(const Values& requests) {
    over.Add(shares, requests);
    double accepted = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) accepted += std::min(requests[i], shares[i]);
    return accepted;
  }
};

Panel PanelOf(std::string title, int cycles) {
  Panel panel;
  panel.title = std::move(title);
  panel.x_label = "cycle";
  panel.y_label = "requests a cycle, all servers";
  panel.x = {0, static_cast<double>(cycles)};
  panel.curves = {{1, "requests", kBlue, Stroke::kThin},
                  {2, "limit", kBlack, Stroke::kDashed},
                  {4, "accepted, graph #2", kGreen},
                  {3, "accepted, graph #1", kRed}};
  return panel;
}

Figure AsInThePaper(const FigureOptions& options) {
  const Setup setup(options);
  Prng prng(options.seed);
  Usage usage(setup.mean, prng);
  Values requests = usage.Requests();
  Fleet one(1), two(2);
  Figure figure;
  figure.columns = Columns(std::array<std::string, 5>{"cycle", "requests", "limit", "accepted_1", "accepted_2"});
  double squares = 0;
  for (int k = -kWarmUp; k <= setup.cycles; ++k) {
    if (k >= 0) {
      AddRow(figure.columns,
             Values{static_cast<double>(k), Sum(requests), kLimit, one.Accept(requests), two.Accept(requests)});
    }
    one.Round(requests, setup.gamma);
    two.Round(requests, setup.gamma);
    usage.Step(prng);
    const Values next = usage.Requests();
    for (std::size_t i = 0; i < kServers; ++i) squares += Square(next[i] - requests[i]);
    requests = next;
  }
  const double deviation = std::sqrt(squares / (kServers * static_cast<double>(kWarmUp + setup.cycles + 1)));
  figure.panels = {PanelOf(fmt::format("1,000 clients of 10 servers, gamma {:g}", setup.gamma), setup.cycles)};
  const double first = one.over.percent(), second = two.over.percent();
  figure.findings = {
      {"over-throttling of graph #1, %", first, Range{3, 8.5}, "6.2"},
      {"over-throttling of graph #2, %", second, Range{1.6, 3.8}, "2.8"},
      {"ratio of the two", first / second, Range{1.4, 4.5}, "2.2"},
      {"limit / deviation of a server's change", kLimit / deviation, Range{280, 480}, ""},
  };
  return figure;
}

Figure OverNetwork(const FigureOptions& options) {
  const FrameTrouble& trouble = *options.network;
  const Setup setup(options);
  constexpr double kSettle = 30;    // cycles until there is a generation and everybody has a best friend
  Prng prng(options.seed);
  Usage usage(setup.mean, prng);
  std::vector<Fleet> pure;
  std::deque<CapacityFleet> hosts;    // they stay where they are
  for (const int number : {1, 2}) {
    CapacityFleet::Options o{.hosts = kServers, .tags = 1, .lanes = trouble.lanes()};
    o.graph = pure.emplace_back(number).graph;
    o.reserve = 0;    // the paper has none
    o.gain = setup.gamma;
    hosts.emplace_back(o, options.seed).Run(kSettle);
  }
  std::array<OverThrottling, 2> over;
  std::array<Parts, 2> most{};
  Figure figure;
  figure.columns = Columns(std::array<std::string, 7>{"cycle", "requests", "limit", "accepted_1", "accepted_2",
                                                      "accepted_1_paper", "accepted_2_paper"});
  for (int k = -kWarmUp; k <= setup.cycles; ++k, usage.Step(prng)) {
    const Values requests = usage.Requests();
    Values row{static_cast<double>(k), Sum(requests), kLimit};
    for (std::size_t g = 0; g < 2; ++g) {
      Values shares;
      double accepted = 0;
      for (std::uint32_t i = 0; i < kServers; ++i) {
        shares.push_back(PartOfWhole(hosts[g].Share(i, 0)) * kLimit);
        accepted += std::min(shares[i], requests[i]);
        hosts[g].SetDemand(i, 0, requests[i] / kLimit);
      }
      row.push_back(accepted);
      if (k >= 0) over[g].Add(shares, requests);
      hosts[g].Run(hosts[g].now() + 1);
      most[g] = hosts[g].most();
    }
    for (Fleet& fleet : pure) {
      if (k >= 0) row.push_back(fleet.Accept(requests));
      fleet.Round(requests, setup.gamma);
    }
    if (k >= 0) AddRow(figure.columns, row);
  }
  figure.panels = {PanelOf(fmt::format("10 hosts, gamma {:g}; of the frames {:g} % are lost, delays up to {:g} s",
                                       setup.gamma, 100 * trouble.loss, Seconds(trouble.delay)),
                           setup.cycles)};
  for (std::size_t g = 0; g < 2; ++g) {
    const double here = over[g].percent(), paper = pure[g].over.percent();
    const std::string graph = fmt::format("graph #{}", g + 1);
    figure.findings.push_back(
        {fmt::format("over-throttling of {}, hosts, %", graph), here, std::nullopt, g == 0 ? "6.2" : "2.8"});
    figure.findings.push_back(
        {fmt::format("over-throttling of {}, rounds of the paper, %", graph), paper, std::nullopt, ""});
    figure.findings.push_back({fmt::format("ratio of the two, {}", graph), here / paper,
                               trouble.mild() ? std::optional(Range{0.95, 1.15}) : std::nullopt, ""});
    figure.findings.push_back({fmt::format("most that all hosts had at once, {}, of the limit", graph),
                               PartOfWhole(most[g]), Range{0.999, 1}, ""});
  }
  return figure;
}

}    // namespace

Figure DstFigure5(const FigureOptions& options) {
  return options.network ? OverNetwork(options) : AsInThePaper(options);
}

Figure DstFigure7(const FigureOptions& options) {
  constexpr double kLoad = 1 / 0.6;    // requests, as a part of what the server may serve
  const std::uint32_t clients = options.nodes.value_or(30);
  Prng prng(options.seed);
  Values requests;
  for (std::uint32_t i = 0; i < clients; ++i) requests.push_back(static_cast<double>(1 + prng.Below(100)));
  std::ranges::sort(requests);
  const double limit = std::floor(Sum(requests) / options.load.value_or(kLoad));
  const ClientLimits ratio = DivideByRatio(requests, limit), level = DivideByLevel(requests, limit);
  Figure figure;
  figure.columns =
      Columns(std::array<std::string, 5>{"client", "requests", "limit_by_ratio", "limit_by_level", "level"});
  int cut = 0;
  double least = 1, most = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    AddRow(figure.columns,
           Values{static_cast<double>(i + 1), requests[i], ratio.limits[i], level.limits[i], level.level});
    cut += level.limits[i] < requests[i];
    least = std::min(least, ratio.limits[i] / requests[i]);
    most = std::max(most, ratio.limits[i] / requests[i]);
  }
  Panel panel;
  panel.title = "(a) Algorithm 1: the same ratio for all";
  panel.x_label = "client, by its requests";
  panel.y_label = "requests in the cycle";
  panel.x = {0, clients + 1.0};
  panel.curves = {{1, "throttled", kRed, Stroke::kBars}, {2, "allowed", kBlue, Stroke::kBars}};
  figure.panels.push_back(panel);
  panel.title = "(b) Algorithm 2: cut down to a level";
  panel.curves = {{1, "throttled", kRed, Stroke::kBars},
                  {3, "allowed", kBlue, Stroke::kBars},
                  {4, "level", kBlack, Stroke::kDashed}};
  figure.panels.push_back(panel);
  figure.panels_a_row = 2;
  const auto exactly = [](double value) { return Range{value - 1e-9, value + 1e-9}; };
  figure.findings = {
      {"(a) allowed in all, requests", Sum(ratio.limits), exactly(limit), ""},
      {"(a) allowed / requested, least", least, exactly(limit / Sum(requests)), ""},
      {"(a) allowed / requested, most", most, exactly(limit / Sum(requests)), ""},
      {"(b) allowed in all, requests", Sum(level.limits), exactly(limit), ""},
      {fmt::format("(b) clients that are throttled, of {}", clients), static_cast<double>(cut), std::nullopt, ""},
      {"(b) the level, requests", level.level, std::nullopt, ""},
  };
  return figure;
}

}    // namespace dthrottle::lab
