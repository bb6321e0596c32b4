// Figures 3 to 7 of GDRL.
//
// Limiter i of 1 to N is asked for i / (N + 1) packets a slot, at most one by chance in each, and estimates that by a
// low-pass filter; a round a slot. The paper does not say where the filter starts. From 0, as here, all limiters seem
// equally idle at first: Jain's index as they measure it is high at once, while in truth it takes some thousand slots.
// So figures have both, and beside them rounds with demands that are known exactly.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>

#include "base/prng.h"
#include "capacity/demand.h"
#include "capacity/fairness.h"
#include "capacity/gain.h"
#include "capacity/topology.h"
#include "lab/capacity_fleet.h"
#include "lab/figure_parts.h"
#include "lab/figures.h"
#include "lab/sampling.h"
#include "share/capacity/part_table.h"

namespace dthrottle::lab {
namespace {

constexpr double kAlpha = 1e-3;
constexpr int kTau = 10'000;    // tau_0, slots
constexpr double kNever = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kRingSize = 10;

// lambda_i, and the same the other way round.
Values Rising(std::size_t n) {
  Values demands;
  for (std::size_t i = 1; i <= n; ++i) demands.push_back(static_cast<double>(i) / static_cast<double>(n + 1));
  return demands;
}
Values Falling(std::size_t n) {
  Values demands = Rising(n);
  std::ranges::reverse(demands);
  return demands;
}

// Limiters that share C as GDRL has it, at the largest gain that (15) allows. Over a network they are hosts.
class Limiters {
 public:
  Limiters(Graph graph, double capacity_per_demand, std::uint64_t seed, const FigureNetwork& network)
      : demands(Rising(graph.size())),
        graph_(std::move(graph)),
        gain_(SpareBandwidthGainMax(graph_)),
        capacity_(capacity_per_demand * Sum(demands)) {
    shares_.assign(demands.size(), capacity_ / static_cast<double>(demands.size()));
    if (network) Begin(seed, *network);
  }

  Values demands;    // to be changed by whoever makes the figure

  Values q() const { return Indicate(demands, shares_); }                        // as it is
  Values measured_q() const { return Indicate(measured_demands(), shares_); }    // as limiters think it is
  Values measured_demands() const {
    if (filters_.empty()) return demands;
    Values measured;
    for (const DemandEstimate& filter : filters_) measured.push_back(filter.value());
    return measured;
  }
  double jain() const { return JainIndex(q()); }
  double measured_jain() const { return JainIndex(measured_q()); }
  double most() const { return PartOfWhole(hosts_->most()); }    // of C, that all had at once. REQUIRES: a network

  void Filter() { filters_.assign(demands.size(), DemandEstimate(kAlpha, 0)); }
  void Round(Prng& prng) {
    for (std::size_t i = 0; i < filters_.size(); ++i) filters_[i].Observe(Happens(demands[i], prng) ? 1 : 0);
    if (hosts_ == nullptr) return lab::Round(graph_, measured_q(), gain_, shares_);
    const Values measured = measured_demands();
    for (std::uint32_t i = 0; i < measured.size(); ++i) hosts_->SetDemand(i, 0, measured[i] / capacity_);
    hosts_->Run(hosts_->now() + 1);
    for (std::uint32_t i = 0; i < measured.size(); ++i) shares_[i] = PartOfWhole(hosts_->Share(i, 0)) * capacity_;
  }

 private:
  void Begin(std::uint64_t seed, const FrameTrouble& trouble) {
    constexpr double kSettle = 30;    // rounds until there is a generation and everybody has a best friend
    CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(demands.size()), .tags = 1, .lanes = trouble.lanes()};
    o.graph = graph_;
    o.reserve = 0;    // the paper has none
    o.gain = gain_;
    hosts_ = std::make_unique<CapacityFleet>(std::move(o), seed);
    hosts_->Run(kSettle);
  }

  Graph graph_;
  double gain_;
  double capacity_;
  Values shares_;
  std::vector<DemandEstimate> filters_;     // none: demands are known
  std::unique_ptr<CapacityFleet> hosts_;    // none: everybody hears everybody at once
};

// When Jain's index first was at least this high.
class Passage {
 public:
  explicit Passage(double index) : index_(index) {}
  void See(int round, double jain) {
    if (std::isnan(at_) && jain >= index_) at_ = round;
  }
  double index() const { return index_; }
  double at() const { return at_; }

 private:
  double index_, at_ = kNever;
};

class Mean {
 public:
  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const { return sum_ / count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

Range Exactly(double value) {
  return {value, value};
}
Range Near(double value, double by) {
  return {value - by, value + by};
}
Range Within(double part, double value) {
  return {value * (1 - part), value * (1 + part)};
}

// What is expected of hosts over a network differs, and is known of a mild one.
std::optional<Range> Expect(const FigureNetwork& network, const Range& as_in_the_paper, const Range& over_network) {
  if (!network) return as_in_the_paper;
  return network->mild() ? std::optional(over_network) : std::nullopt;
}

void AddMost(Figure& figure, double most) {
  figure.findings.push_back({"most that all hosts had at once, of the capacity", most, Range{0.999, 1}, ""});
}

void AddNames(std::vector<std::string>& names, std::string_view what) {
  for (std::size_t i = 1; i <= kRingSize; ++i) names.push_back(fmt::format("{}_{}", what, i));
}

void AddCurves(Panel& panel, std::size_t first_column, Stroke stroke = Stroke::kSolid) {
  for (std::size_t i = 0; i < kRingSize; ++i) {
    const bool named = i == 0 || i + 1 == kRingSize;
    panel.curves.push_back({first_column + i, named ? fmt::format("limiter {}", i + 1) : "", kScale[i], stroke});
  }
}

void Append(Values& to, const Values& values) {
  to.insert(to.end(), values.begin(), values.end());
}

// What deviation the filter leaves in an estimate of chance arrivals, averaged over limiters.
double FilterNoise(const Values& demands) {
  double variance = 0;
  for (const double demand : demands) variance += kAlpha / 2 * demand * (1 - demand);
  return std::sqrt(variance / static_cast<double>(demands.size()));
}

double RootMeanSquare(const Values& a, const Values& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

Limiters Ring(double capacity_per_demand, std::uint64_t seed, const FigureNetwork& network) {
  return Limiters(RingTopology(kRingSize), capacity_per_demand, seed, network);
}

// Slots until steady, and slots to average over. Over a network fewer, because they take longer.
int Settled(const FigureNetwork& network) {
  return network ? 8000 : 20'000;
}
int Measured(const FigureNetwork& network) {
  return network ? 10'000 : 100'000;
}

}    // namespace

Figure GdrlFigure3(std::uint64_t seed, const FigureNetwork& network) {
  const int last = Settled(network);
  Prng prng(seed);
  Limiters exact = Ring(1.1, seed, network), filtered = Ring(1.1, seed, network);
  filtered.Filter();
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"exact_q", "filtered_q", "measured_q"}) AddNames(names, what);
  figure.columns = Columns(names);
  int round = 0;
  for (const int at : LogRounds(last, 200)) {
    for (; round < at; ++round) {
      exact.Round(prng);
      filtered.Round(prng);
    }
    Values row{static_cast<double>(round)};
    Append(row, exact.q());
    Append(row, filtered.q());
    Append(row, filtered.measured_q());
    AddRow(figure.columns, row);
  }
  for (const auto& [title, first] : {std::pair{"exact demands", std::size_t{1}},
                                     {"filter: q as it is", 1 + kRingSize},
                                     {"filter: q as limiters measure it", 1 + 2 * kRingSize}}) {
    Panel panel;
    panel.title = title;
    panel.x_label = "round";
    panel.y_label = "q, packets a slot";
    panel.log_x = true;
    panel.x = {1, static_cast<double>(last)};
    panel.y = {-0.55, 0.45};
    AddCurves(panel, first);
    figure.panels.push_back(panel);
  }
  figure.panels_a_row = 3;
  const double spread = Spread(exact.q());
  Mean noise, level;
  for (int i = 0; i < Measured(network); ++i) {
    filtered.Round(prng);
    const Values q = filtered.q();
    level.Add(Sum(q) / kRingSize);
    noise.Add(std::pow(RootMeanSquare(q, Values(kRingSize, Sum(q) / kRingSize)), 2));
  }
  figure.findings = {
      {"exact: largest less smallest q in the end", spread, Expect(network, {0, 1e-9}, {0, 0.01}), "0"},
      {"q that all come to, packets a slot", level.value(), Expect(network, Near(-0.05, 1e-9), Near(-0.05, 2e-4)), ""},
      {"filtered: deviation of q about it", std::sqrt(noise.value()),
       Within(network ? 0.25 : 0.1, FilterNoise(filtered.demands)), ""},
  };
  if (network) AddMost(figure, std::max(exact.most(), filtered.most()));
  return figure;
}

Figure GdrlFigure4(std::uint64_t seed, const FigureNetwork& network) {
  const int last = Settled(network);
  Prng prng(seed);
  Limiters exact = Ring(1.1, seed, network), filtered = Ring(1.1, seed, network);
  filtered.Filter();
  Figure figure;
  figure.columns = Columns(std::array<std::string, 4>{"round", "exact", "filtered", "measured"});
  std::array<Passage, 5> exactly{Passage(.5), Passage(.9), Passage(.95), Passage(.99), Passage(.999)};
  Passage really(.95);
  double least = 1;
  int round = 0;
  for (const int at : LogRounds(last, 200)) {
    for (; round < at; ++round) {
      for (Passage& passage : exactly) passage.See(round, exact.jain());
      really.See(round, filtered.jain());
      if (round > 0) least = std::min(least, filtered.measured_jain());
      exact.Round(prng);
      filtered.Round(prng);
    }
    AddRow(figure.columns, Values{static_cast<double>(round), exact.jain(), filtered.jain(), filtered.measured_jain()});
  }
  Mean measured, real;
  for (int i = 0; i < Measured(network); ++i) {
    filtered.Round(prng);
    measured.Add(filtered.measured_jain());
    real.Add(filtered.jain());
  }
  Panel panel;
  panel.title = "ring of 10, gain 1/4, C = 1.1 of the demand";
  panel.x_label = "round";
  panel.y_label = "Jain's index of q";
  panel.log_x = true;
  panel.x = {1, static_cast<double>(last)};
  panel.y = {0, 1.02};
  panel.curves = {{3, "as limiters measure it, by the filter", kOrange},
                  {1, "demands known exactly", kBlue, Stroke::kDashed},
                  {2, "as it is, with the filter", kRed}};
  figure.panels = {panel};
  figure.findings = {
      {"exact: rounds to 0.5", exactly[0].at(), Expect(network, Exactly(15), {7, 30}), ""},
      {"exact: rounds to 0.9", exactly[1].at(), Expect(network, Exactly(26), {13, 52}), ""},
      {"exact: rounds to 0.95", exactly[2].at(), Expect(network, Exactly(29), {14, 58}), ""},
      {"exact: rounds to 0.99", exactly[3].at(), Expect(network, Exactly(38), {19, 76}), ""},
      {"exact: rounds to 0.999", exactly[4].at(), Expect(network, Exactly(49), {24, 98}), ""},
      {"filtered: rounds to 0.95", really.at(), Range{2300, 6000}, ""},
      {"filtered: index in the end", real.value(), Expect(network, {.9583, .9783}, {.94, .99}), ""},
      {"measured: least index on the way", least, Expect(network, {.99, 1}, {.98, 1}), ""},
      {"measured: index in the end", measured.value(), Expect(network, {.9996, 1}, {.999, 1}), "\"very close to 1\""},
  };
  if (network) AddMost(figure, std::max(exact.most(), filtered.most()));
  return figure;
}

namespace {

// Section III-B. Departure: the ramp is printed with its weights swapped, and would jump at both of its ends; the text
// has one jump, at tau_0, and a smooth way back.
Values Changing(int round) {
  const Values rising = Rising(kRingSize), falling = Falling(kRingSize);
  if (round <= kTau || round > 3 * kTau) return rising;
  if (round <= 2 * kTau) return falling;
  const double part = (round - 2.0 * kTau) / kTau;
  Values demands;
  for (std::size_t i = 0; i < kRingSize; ++i) demands.push_back((1 - part) * falling[i] + part * rising[i]);
  return demands;
}

constexpr int kChangingEvery = 50;    // rounds from a drawn one to the next
constexpr double kLoad = 0.9;         // of the capacity

}    // namespace

Figure GdrlFigure5(std::uint64_t seed, const FigureNetwork&) {
  Prng prng(seed);
  std::vector<DemandEstimate> filters(kRingSize, DemandEstimate(kAlpha, 0));
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"demand", "estimate"}) AddNames(names, what);
  figure.columns = Columns(names);
  Mean noise, lag;
  double followed = kNever;
  for (int round = 1; round <= 4 * kTau; ++round) {
    const Values demands = Changing(round);
    Values estimates;
    for (std::size_t i = 0; i < kRingSize; ++i) {
      filters[i].Observe(Happens(demands[i], prng) ? 1 : 0);
      estimates.push_back(filters[i].value());
    }
    if (round % kTau > kTau / 2 && round < 2 * kTau) noise.Add(std::pow(RootMeanSquare(estimates, demands), 2));
    // The jump of limiter 1, who has the largest, to 1 - 1/e of the way.
    if (round > kTau && std::isnan(followed) && estimates[0] >= 10 / 11.0 - 9 / 11.0 / std::numbers::e) {
      followed = round - kTau;
    }
    if (round > 2.5 * kTau && round <= 3 * kTau) lag.Add(estimates[0] - demands[0]);
    if (round % kChangingEvery != 0) continue;
    Values row{static_cast<double>(round)};
    Append(row, demands);
    Append(row, estimates);
    AddRow(figure.columns, row);
  }
  Panel panel;
  panel.title = "demand (black) and what the filter makes of it, alpha 0.001";
  panel.x_label = "round";
  panel.y_label = "packets a slot";
  panel.x = {0, 4 * kTau};
  panel.y = {0, 1};
  AddCurves(panel, 1 + kRingSize);
  for (std::size_t i = 0; i < kRingSize; ++i) {
    panel.curves.push_back({1 + i, i == 0 ? "demand" : "", kBlack, Stroke::kThin});
  }
  figure.panels = {panel};
  const double slope = 9 / 11.0 / kTau;
  figure.findings = {
      {"rounds to 1 - 1/e of the jump, limiter 1", followed, Within(0.15, 1 / kAlpha), ""},
      {"deviation of estimates, steady demand", std::sqrt(noise.value()), Within(0.25, FilterNoise(Rising(kRingSize))),
       ""},
      {"estimate less demand on the ramp, limiter 1", lag.value(), Within(0.25, slope / kAlpha), ""},
  };
  return figure;
}

Figure GdrlFigure6(std::uint64_t seed, const FigureNetwork& network) {
  Prng prng(seed);
  Limiters exact = Ring(1 / kLoad, seed, network), filtered = Ring(1 / kLoad, seed, network);
  filtered.Filter();
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"measured_q", "filtered_q"}) AddNames(names, what);
  names.insert(names.end(), {"measured", "filtered", "exact"});
  figure.columns = Columns(names);
  Passage exact_again(.95), filtered_again(.9);
  Mean ramp;
  double exact_least = 1, measured_least = 1;
  for (int round = 1; round <= 4 * kTau; ++round) {
    exact.demands = filtered.demands = Changing(round);
    exact.Round(prng);
    filtered.Round(prng);
    const int after = round - kTau - 1;    // rounds after the first with the new demands
    if (after >= 0 && round <= 2 * kTau) {
      exact_again.See(after, exact.jain());
      filtered_again.See(after, filtered.jain());
    }
    if (round > 2 * kTau) exact_least = std::min(exact_least, exact.jain());
    if (round > 2.5 * kTau && round <= 3 * kTau) ramp.Add(filtered.jain());
    if (round > kTau) measured_least = std::min(measured_least, filtered.measured_jain());
    if (round % kChangingEvery != 0) continue;
    Values row{static_cast<double>(round)};
    Append(row, filtered.measured_q());
    Append(row, filtered.q());
    Append(row, {filtered.measured_jain(), filtered.jain(), exact.jain()});
    AddRow(figure.columns, row);
  }
  Panel panel;
  panel.x_label = "round";
  panel.x = {0, 4 * kTau};
  panel.y_label = "q, packets a slot";
  for (const auto& [title, first] :
       {std::pair{"q as limiters measure it", std::size_t{1}}, {"q as it is", 1 + kRingSize}}) {
    panel.title = title;
    panel.curves.clear();
    AddCurves(panel, first);
    figure.panels.push_back(panel);
  }
  panel.title = "Jain's index of q";
  panel.y_label = "index";
  panel.y = {0, 1.02};
  panel.curves = {{1 + 2 * kRingSize, "as measured", kOrange},
                  {3 + 2 * kRingSize, "exact demands", kBlue, Stroke::kDashed},
                  {2 + 2 * kRingSize, "as it is", kRed}};
  figure.panels.push_back(panel);
  figure.findings = {
      {"exact: rounds to 0.95 after the jump", exact_again.at(), Expect(network, Exactly(34), {17, 68}), ""},
      {"exact: least index from the ramp on", exact_least, Expect(network, {.9999, 1}, {.999, 1}), ""},
      {"filtered: rounds to 0.9 after the jump", filtered_again.at(), Within(0.2, 3400), ""},
      {"filtered: index on the ramp, second half", ramp.value(), Range{.4, .6}, ""},
      {"measured: least index from the jump on", measured_least, Expect(network, {.99, 1}, {.98, 1}), ""},
  };
  if (network) AddMost(figure, std::max(exact.most(), filtered.most()));
  return figure;
}

namespace {

// One of Figure 7's nine.
struct Case {
  std::uint32_t nodes, degree;
  std::optional<Range> rounds_exact;    // to 0.95
};

constexpr int kScaleLast = 10'000;

constexpr int kFilterRounds = 4000;    // show what the filter does

// The last round that is computed: of many hosts over a network one takes long.
int Last(std::uint32_t nodes, const FigureNetwork& network) {
  return !network || nodes <= 10 ? kScaleLast : nodes <= 100 ? 1000 : 100;
}

// Jain's index at each of `rounds` up to `last`, and when it first was `index`. What has settled stays as it is.
Values Watch(Limiters& limiters, const std::vector<int>& rounds, int last, Passage& passage, Prng& prng) {
  constexpr double kEqual = 1 - 1e-12;
  Values jain;
  int round = 0;
  for (const int at : rounds) {
    for (; round < std::min(at, last); ++round) {
      const double now = limiters.jain();
      passage.See(round, now);
      if (now < kEqual) limiters.Round(prng);
    }
    jain.push_back(at <= last ? limiters.jain() : kNever);
  }
  return jain;
}

}    // namespace

Figure GdrlFigure7(std::uint64_t seed, const FigureNetwork& network) {
  const Case cases[] = {
      {10, 2, Range{5, 30}},      {10, 4, Range{4, 14}},    {10, 8, Range{3, 7}},
      {100, 2, Range{300, 4000}}, {100, 4, Range{11, 21}},  {100, 8, Range{4, 10}},
      {1000, 2, std::nullopt},    {1000, 4, Range{15, 23}}, {1000, 8, Range{7, 12}},
  };
  const std::vector<int> rounds = LogRounds(kScaleLast, 100);
  Prng prng(seed);
  double most = 0;
  Figure figure;
  figure.columns.push_back({"round", Values(rounds.begin(), rounds.end())});
  for (const Case& c : cases) {
    const Graph graph = *GraphOf(c.nodes, *RegularPairs(c.nodes, c.degree, prng));
    const int last = Last(c.nodes, network);
    const std::string name = fmt::format("N = {}, d = {}", c.nodes, c.degree);
    if (c.degree == 2) {
      Panel panel;
      panel.title = fmt::format("N = {} limiters, d neighbours each", c.nodes);
      panel.x_label = "round";
      panel.y_label = "Jain's index of q";
      panel.log_x = true;
      panel.x = {1, kScaleLast};
      panel.y = {0, 1.02};
      figure.panels.push_back(panel);
    }
    const std::string_view colour = c.degree == 2 ? kRed : c.degree == 4 ? kBlue : kGreen;
    for (const bool filtered : {false, true}) {
      if (filtered && last < kFilterRounds) continue;
      Limiters limiters(graph, 1 / kLoad, seed, network);
      if (filtered) limiters.Filter();
      Passage passage(filtered ? .9 : .95);
      const char* const what = filtered ? "filtered" : "exact";
      figure.panels.back().curves.push_back({figure.columns.size(),
                                             fmt::format("d = {}, {}", c.degree, filtered ? "filter" : "exact"), colour,
                                             filtered ? Stroke::kSolid : Stroke::kDashed});
      figure.columns.push_back(
          {fmt::format("N{}_d{}_{}", c.nodes, c.degree, what), Watch(limiters, rounds, last, passage, prng)});
      const std::optional<Range> theory = !filtered      ? c.rounds_exact
                                          : c.degree > 2 ? std::optional(Range{2200, 3500})
                                                         : std::nullopt;
      figure.findings.push_back({fmt::format("{}, {}: rounds to {:g}", name, what, passage.index()), passage.at(),
                                 theory && theory->high <= last
                                     ? Expect(network, *theory, {theory->low / 2, theory->high * 2})
                                     : std::nullopt,
                                 ""});
      if (network) most = std::max(most, limiters.most());
    }
  }
  if (network) AddMost(figure, most);
  figure.panels_a_row = 3;
  return figure;
}

}    // namespace dthrottle::lab
