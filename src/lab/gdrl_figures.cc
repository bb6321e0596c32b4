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
#include <numbers>
#include <optional>
#include <string>
#include <utility>

#include "capacity/topology.h"
#include "lab/figures.h"
#include "lab/gdrl_limiters.h"

namespace dthrottle::lab {
namespace {

// The paper's, where options say nothing.
constexpr double kAlpha = 1e-3;
constexpr std::uint32_t kRingSize = 10;
constexpr double kRingLoad = 1 / 1.1;
constexpr double kLoad = 0.9;             // where demand changes, and in random graphs
constexpr int kTau = 10'000;              // tau_0, slots

double AlphaOf(const FigureOptions& options) {
  return options.alpha.value_or(kAlpha);
}
std::size_t NodesOf(const FigureOptions& options) {
  return options.nodes.value_or(kRingSize);
}

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

void AddNames(std::vector<std::string>& names, std::string_view what, std::size_t nodes) {
  for (std::size_t i = 1; i <= nodes; ++i) names.push_back(fmt::format("{}_{}", what, i));
}

// Draws ten at most, from the first limiter to the last.
void AddCurves(Panel& panel, std::size_t first_column, std::size_t nodes) {
  const std::size_t drawn = std::min(nodes, std::size(kScale));
  for (std::size_t i = 0; i < drawn; ++i) {
    const std::size_t limiter = i * (nodes - 1) / std::max<std::size_t>(drawn - 1, 1);
    const bool named = i == 0 || i + 1 == drawn;
    panel.curves.push_back({first_column + limiter, named ? fmt::format("limiter {}", limiter + 1) : "", kScale[i]});
  }
}

void Append(Values& to, const Values& values) {
  to.insert(to.end(), values.begin(), values.end());
}

// What deviation the filter leaves in an estimate of chance arrivals, averaged over limiters.
double FilterNoise(double alpha, const Values& demands) {
  double variance = 0;
  for (const double demand : demands) variance += alpha / 2 * demand * (1 - demand);
  return std::sqrt(variance / static_cast<double>(demands.size()));
}

double RootMeanSquare(const Values& a, const Values& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

Limiters Ring(double load, const FigureOptions& options) {
  return Limiters(RingTopology(static_cast<std::uint32_t>(NodesOf(options))), options.load.value_or(load), options);
}

// Without its curves: a panel of rounds on a logarithmic axis.
Panel OverRounds(std::string title, std::string y_label, int last) {
  Panel panel;
  panel.title = std::move(title);
  panel.x_label = "round";
  panel.y_label = std::move(y_label);
  panel.x = {1, static_cast<double>(last)};
  panel.log_x = true;
  return panel;
}

// Slots until steady, and slots to average over. Over a network fewer, because they take longer.
int Settled(const FigureOptions& options) {
  return static_cast<int>(options.rounds.value_or(options.network ? 8000 : 20'000));
}
int Measured(const FigureOptions& options) {
  return options.network ? 10'000 : 100'000;
}

}    // namespace

Figure GdrlFigure3(const FigureOptions& options) {
  const FigureNetwork& network = options.network;
  const int last = Settled(options);
  Prng prng(options.seed);
  Limiters exact = Ring(kRingLoad, options), filtered = Ring(kRingLoad, options);
  filtered.Filter(AlphaOf(options));
  const std::size_t nodes = NodesOf(options);
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"exact_q", "filtered_q", "measured_q"}) AddNames(names, what, nodes);
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
                                     {"filter: q as it is", 1 + nodes},
                                     {"filter: q as limiters measure it", 1 + 2 * nodes}}) {
    Panel panel = OverRounds(title, "q, packets a slot", last);
    if (options.as_printed()) panel.y = {-0.55, 0.45};
    AddCurves(panel, first, nodes);
    figure.panels.push_back(panel);
  }
  figure.panels_a_row = 3;
  const double spread = Spread(exact.q());
  Mean noise, level;
  for (int i = 0; i < Measured(options); ++i) {
    filtered.Round(prng);
    const Values q = filtered.q();
    level.Add(Sum(q) / static_cast<double>(nodes));
    noise.Add(std::pow(RootMeanSquare(q, Values(nodes, Sum(q) / static_cast<double>(nodes))), 2));
  }
  figure.findings = {
      {"exact: largest less smallest q in the end", spread, Expect(network, {0, 1e-9}, {0, 0.01}), "0"},
      {"q that all come to, packets a slot", level.value(), Expect(network, Near(-0.05, 1e-9), Near(-0.05, 2e-4)), ""},
      {"filtered: deviation of q about it", std::sqrt(noise.value()),
       Within(network ? 0.25 : 0.1, FilterNoise(AlphaOf(options), filtered.demands)), ""},
  };
  if (network) AddMost(figure, std::max(exact.most(), filtered.most()));
  return figure;
}

Figure GdrlFigure4(const FigureOptions& options) {
  const FigureNetwork& network = options.network;
  const int last = Settled(options);
  Prng prng(options.seed);
  Limiters exact = Ring(kRingLoad, options), filtered = Ring(kRingLoad, options);
  filtered.Filter(AlphaOf(options));
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
  for (int i = 0; i < Measured(options); ++i) {
    filtered.Round(prng);
    measured.Add(filtered.measured_jain());
    real.Add(filtered.jain());
  }
  Panel panel = OverRounds(options.as_printed() ? "ring of 10, gain 1/4, C = 1.1 of the demand"
                                                : fmt::format("ring of {}", NodesOf(options)),
                           "Jain's index of q", last);
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
Values Changing(int round, int tau, std::size_t nodes) {
  const Values rising = Rising(nodes), falling = Falling(nodes);
  if (round <= tau || round > 3 * tau) return rising;
  if (round <= 2 * tau) return falling;
  const double part = (round - 2.0 * tau) / tau;
  Values demands;
  for (std::size_t i = 0; i < nodes; ++i) demands.push_back((1 - part) * falling[i] + part * rising[i]);
  return demands;
}

// The x axis has four times tau_0.
int TauOf(const FigureOptions& options) {
  return options.rounds ? std::max(static_cast<int>(*options.rounds) / 4, 1) : kTau;
}
// Rounds from a drawn one to the next.
int EveryOf(int tau) {
  return std::max(tau / 200, 1);
}

}    // namespace

Figure GdrlFigure5(const FigureOptions& options) {
  const std::size_t nodes = NodesOf(options);
  const int tau = TauOf(options);
  const double alpha = AlphaOf(options);
  Prng prng(options.seed);
  std::vector<DemandEstimate> filters(nodes, DemandEstimate(alpha, 0));
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"demand", "estimate"}) AddNames(names, what, nodes);
  figure.columns = Columns(names);
  Mean noise, lag;
  double followed = kNever;
  const double low = Rising(nodes).front(), high = Falling(nodes).front();
  for (int round = 1; round <= 4 * tau; ++round) {
    const Values demands = Changing(round, tau, nodes);
    Values estimates;
    for (std::size_t i = 0; i < nodes; ++i) {
      filters[i].Observe(Happens(demands[i], prng) ? 1 : 0);
      estimates.push_back(filters[i].value());
    }
    if (round % tau > tau / 2 && round < 2 * tau) noise.Add(std::pow(RootMeanSquare(estimates, demands), 2));
    // The jump of limiter 1, who has the largest, to 1 - 1/e of the way.
    if (round > tau && std::isnan(followed) && estimates[0] >= high - (high - low) / std::numbers::e) {
      followed = round - tau;
    }
    if (round > 2.5 * tau && round <= 3 * tau) lag.Add(estimates[0] - demands[0]);
    if (round % EveryOf(tau) != 0) continue;
    Values row{static_cast<double>(round)};
    Append(row, demands);
    Append(row, estimates);
    AddRow(figure.columns, row);
  }
  Panel panel;
  panel.title = fmt::format("demand (black) and what the filter makes of it, alpha {:g}", alpha);
  panel.x_label = "round";
  panel.y_label = "packets a slot";
  panel.x = {0, 4.0 * tau};
  panel.y = {0, 1};
  AddCurves(panel, 1 + nodes, nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    panel.curves.push_back({1 + i, i == 0 ? "demand" : "", kBlack, Stroke::kThin});
  }
  figure.panels = {panel};
  const double slope = (high - low) / tau;
  figure.findings = {
      {"rounds to 1 - 1/e of the jump, limiter 1", followed, Within(0.15, 1 / alpha), ""},
      {"deviation of estimates, steady demand", std::sqrt(noise.value()), Within(0.25, FilterNoise(alpha, Rising(nodes))),
       ""},
      {"estimate less demand on the ramp, limiter 1", lag.value(), Within(0.25, slope / alpha), ""},
  };
  return figure;
}

namespace {

std::vector<Panel> PanelsOfFigure6(std::size_t nodes, int tau) {
  std::vector<Panel> panels;
  Panel panel;
  panel.x_label = "round";
  panel.x = {0, 4.0 * tau};
  panel.y_label = "q, packets a slot";
  for (const auto& [title, first] :
       {std::pair{"q as limiters measure it", std::size_t{1}}, {"q as it is", 1 + nodes}}) {
    panel.title = title;
    panel.curves.clear();
    AddCurves(panel, first, nodes);
    panels.push_back(panel);
  }
  panel.title = "Jain's index of q";
  panel.y_label = "index";
  panel.y = {0, 1.02};
  panel.curves = {{1 + 2 * nodes, "as measured", kOrange},
                  {3 + 2 * nodes, "exact demands", kBlue, Stroke::kDashed},
                  {2 + 2 * nodes, "as it is", kRed}};
  panels.push_back(panel);
  return panels;
}

}    // namespace

Figure GdrlFigure6(const FigureOptions& options) {
  const FigureNetwork& network = options.network;
  const std::size_t nodes = NodesOf(options);
  const int tau = TauOf(options);
  Prng prng(options.seed);
  Limiters exact = Ring(kLoad, options), filtered = Ring(kLoad, options);
  filtered.Filter(AlphaOf(options));
  Figure figure;
  std::vector<std::string> names{"round"};
  for (const char* what : {"measured_q", "filtered_q"}) AddNames(names, what, nodes);
  names.insert(names.end(), {"measured", "filtered", "exact"});
  figure.columns = Columns(names);
  Passage exact_again(.95), filtered_again(.9);
  Mean ramp;
  double exact_least = 1, measured_least = 1;
  for (int round = 1; round <= 4 * tau; ++round) {
    exact.demands = filtered.demands = Changing(round, tau, nodes);
    exact.Round(prng);
    filtered.Round(prng);
    const int after = round - tau - 1;    // rounds after the first with the new demands
    if (after >= 0 && round <= 2 * tau) {
      exact_again.See(after, exact.jain());
      filtered_again.See(after, filtered.jain());
    }
    if (round > 2 * tau) exact_least = std::min(exact_least, exact.jain());
    if (round > 2.5 * tau && round <= 3 * tau) ramp.Add(filtered.jain());
    if (round > tau) measured_least = std::min(measured_least, filtered.measured_jain());
    if (round % EveryOf(tau) != 0) continue;
    Values row{static_cast<double>(round)};
    Append(row, filtered.measured_q());
    Append(row, filtered.q());
    Append(row, {filtered.measured_jain(), filtered.jain(), exact.jain()});
    AddRow(figure.columns, row);
  }
  figure.panels = PanelsOfFigure6(nodes, tau);
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

// One of Figure 7's.
struct Case {
  std::uint32_t nodes, degree;
  std::optional<Range> rounds_exact{};    // to 0.95
};

constexpr std::uint32_t kScaleLast = 10'000;
constexpr int kFilterRounds = 4000;         // show what the filter does
constexpr int kWatchedLast = 100'000;       // until then a passage is waited for that the picture does not show

std::vector<Case> CasesOf(const FigureOptions& options) {
  if (!options.nodes) {
    return {{10, 2, Range{5, 30}},      {10, 4, Range{4, 14}},    {10, 8, Range{3, 7}},
            {100, 2, Range{300, 4000}}, {100, 4, Range{11, 21}},  {100, 8, Range{4, 10}},
            {1000, 2, Range{1000, 1e5}}, {1000, 4, Range{15, 23}}, {1000, 8, Range{7, 12}}};
  }
  std::vector<Case> cases;
  for (const std::uint32_t degree : {2, 4, 8}) {
    if (degree < *options.nodes) cases.push_back({*options.nodes, degree});
  }
  return cases;
}

// The last round that is computed: of many hosts over a network one takes long.
int Last(std::uint32_t nodes, const FigureOptions& options) {
  if (options.rounds) return static_cast<int>(*options.rounds);
  return !options.network || nodes <= 10 ? kScaleLast : nodes <= 100 ? 1000 : 100;
}

// Jain's index at each of `rounds` up to `last`, and when it first was `index`. What has settled stays as it is.
Values Watch(Limiters& limiters, const std::vector<int>& rounds, int last, Passage& passage, Prng& prng) {
  constexpr double kEqual = 1 - 1e-12;
  Values jain;
  int round = 0;
  const auto go = [&](int until) {
    for (; round < until && limiters.going(); ++round) {
      const double now = limiters.jain();
      passage.See(round, now);
      if (now < kEqual) limiters.Round(prng);
    }
  };
  for (const int at : rounds) {
    go(std::min(at, last));
    jain.push_back(at <= last ? limiters.jain() : kNever);
  }
  return jain;
}

Panel ScalePanel(std::uint32_t nodes, int last) {
  Panel panel = OverRounds(fmt::format("N = {} limiters, d neighbours each", nodes), "Jain's index of q", last);
  panel.y = {0, 1.02};
  return panel;
}

// Both curves of a case, and when they pass. Returns the most that hosts over a network had at once.
double AddCase(Figure& figure, const Case& c, const std::vector<int>& rounds, const FigureOptions& options,
               Prng& prng) {
  const Graph graph = *GraphOf(c.nodes, *RegularPairs(c.nodes, c.degree, prng));
  const int last = Last(c.nodes, options);
  const std::string name = fmt::format("N = {}, d = {}", c.nodes, c.degree);
  const std::string_view colour = c.degree == 2 ? kRed : c.degree == 4 ? kBlue : kGreen;
  double most = 0;
  for (const bool filtered : {false, true}) {
    if (filtered && last < kFilterRounds) continue;
    Limiters limiters(graph, options.load.value_or(kLoad), options);
    if (filtered) limiters.Filter(AlphaOf(options));
    Passage passage(filtered ? .9 : .95);
    const char* const what = filtered ? "filtered" : "exact";
    figure.panels.back().curves.push_back({figure.columns.size(),
                                           fmt::format("d = {}, {}", c.degree, filtered ? "filter" : "exact"), colour,
                                           filtered ? Stroke::kSolid : Stroke::kDashed});
    figure.columns.push_back(
        {fmt::format("N{}_d{}_{}", c.nodes, c.degree, what), Watch(limiters, rounds, last, passage, prng)});
    for (int round = last; !options.network && std::isnan(passage.at()) && round < kWatchedLast && limiters.going();
         ++round) {
      passage.See(round, limiters.jain());
      limiters.Round(prng);
    }
    const std::optional<Range> theory = !filtered      ? c.rounds_exact
                                        : c.degree > 2 ? std::optional(Range{2200, 3500})
                                                       : std::nullopt;
    const bool seen = theory && (theory->high <= last || !options.network);
    figure.findings.push_back({fmt::format("{}, {}: rounds to {:g}", name, what, passage.index()), passage.at(),
                               seen ? Expect(options.network, *theory, {theory->low / 2, theory->high * 2})
                                    : std::nullopt,
                               ""});
    if (options.network) most = std::max(most, limiters.most());
  }
  return most;
}

}    // namespace

Figure GdrlFigure7(const FigureOptions& options) {
  const int last = static_cast<int>(options.rounds.value_or(kScaleLast));
  const std::vector<int> rounds = LogRounds(last, 100);
  Prng prng(options.seed);
  double most = 0;
  Figure figure;
  figure.columns.push_back({"round", Values(rounds.begin(), rounds.end())});
  for (const Case& c : CasesOf(options)) {
    if (!options.go_on()) break;
    if (c.degree == 2) figure.panels.push_back(ScalePanel(c.nodes, last));
    most = std::max(most, AddCase(figure, c, rounds, options, prng));
  }
  if (options.network) AddMost(figure, most);
  figure.panels_a_row = figure.panels.size();
  return figure;
}

}    // namespace dthrottle::lab
