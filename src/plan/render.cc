#include "plan/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <nlohmann/json.hpp>

#include "io/picture.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kRowsMax = 40;
constexpr int kPlotPoints = 400;

// "label   text", labels of one width.
void Line(std::string& out, std::string_view label, std::string_view text) {
  fmt::format_to(std::back_inserter(out), "{:<18} {}\n", label, text);
}

std::string Value(double value) {
  return std::isinf(value) ? "infinite" : fmt::format("{:.6g}", value);
}

std::string Duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  return seconds < 7200 ? fmt::format("{:.3g} min", seconds / 60) : fmt::format("{:.3g} h", seconds / 3600);
}

std::size_t Widest(const std::vector<std::string>& names) {
  std::size_t width = 4;
  for (std::size_t i = 0; i < std::min(names.size(), kRowsMax); ++i) width = std::max(width, names[i].size());
  return std::min<std::size_t>(width, 30);
}

const Design* Have(const std::optional<Result<Design>>& design) {
  return design && *design ? &**design : nullptr;
}

void Shape(std::string& out, const Plan& plan) {
  const Graph& graph = plan.graph.graph;
  std::uint32_t least = graph.DegreeMax();
  for (std::uint32_t i = 0; i < graph.size(); ++i) least = std::min(least, graph.Degree(i));
  Line(out, "graph",
       fmt::format("{}: {} nodes, {} links, {} to {} links a node", plan.source, graph.size(), graph.links().size(),
                   least, graph.DegreeMax()));
  for (const std::string& note : plan.graph.notes) Line(out, "", note);
  Line(out, "eigenvalues", fmt::format("lambda_2 {:.6g}, lambda_n {:.6g}", plan.best.lambda2, plan.best.lambda_n));
  Line(out, "stable",
       fmt::format("gamma below {:.6g} (Lemma 2); below {:.6g} without eigenvalues", plan.stable_below,
                   plan.stable_below_simple));
  Line(out, "fastest cycle",
       fmt::format("gamma {:.6g} (27): Phi_cr {:.6g}", plan.best.fastest_cycle, plan.best.convergence_factor));
  if (!plan.whole()) return Line(out, "GDRL gain", fmt::format("at most {:.6g} (GDRL 15)", plan.gdrl_gain_max));
  Line(out, "steadiest cycle",
       fmt::format("gamma {:.6g} (31): Phi_ss {:.6g}", plan.best.steadiest_cycle, plan.best.dispersion));
  Line(out, "GDRL gain", fmt::format("at most {:.6g} (GDRL 15)", plan.gdrl_gain_max));
}

void Dispersions(std::string& out, const Plan& plan) {
  std::string simulated;
  if (plan.simulated) {
    simulated = fmt::format("{:.6g} +- {:.2g} simulated", plan.simulated->mean, plan.simulated->standard_error);
  } else if (plan.rounds_to_simulate > 0) {
    simulated = fmt::format("not simulated: that takes --rounds {}", plan.rounds_to_simulate);
  }
  if (!plan.whole()) return Line(out, "Phi_ss", simulated.empty() ? "not simulated" : simulated);
  Line(out, "Phi_ss", fmt::format("{} (20), Cov(v) = sigma^2 I", Value(plan.dispersion)));
  if (!simulated.empty()) Line(out, "", simulated);
  if (plan.dispersion_of_covariance) {
    Line(out, "", fmt::format("{} (20), Cov(v) as given", Value(*plan.dispersion_of_covariance)));
  }
  if (plan.dispersion_of_variances) {
    Line(out, "", fmt::format("{} (20), Cov(v) = diag(variances)", Value(*plan.dispersion_of_variances)));
  }
  Line(out, "", fmt::format("{} (24), Cov(v) = gamma sigma^2 I", Value(plan.dispersion_eq24)));
  Line(out, "", fmt::format("{} (25), that for short cycles", Value(plan.dispersion_eq25)));
}

void AtGamma(std::string& out, const Plan& plan) {
  fmt::format_to(std::back_inserter(out), "\nwith gamma {:.6g}, sigma {:.6g}\n", plan.gamma, plan.sigma);
  std::string speed = "never settles";
  if (plan.rounds_to_settle) {
    speed = fmt::format("differences fall to {:g} % in {} rounds", 100 * kSettled, *plan.rounds_to_settle);
    if (plan.seconds_to_settle) speed += ", " + Duration(*plan.seconds_to_settle);
  }
  Line(out, "Phi_cr", fmt::format("{} (15): {}", Value(plan.convergence_factor), speed));
  Dispersions(out, plan);
  if (plan.over_throttling) {
    Line(out, "over-throttling", fmt::format("{:.4g} % while demand sits at the limit", *plan.over_throttling));
  }
  if (plan.whole()) Line(out, "resistance", fmt::format("{:.6g} over all pairs of nodes (2)", plan.resistance_total));
}

void DesignLine(std::string& out, std::string_view label, std::string_view symbol,
                const std::optional<Result<Design>>& design) {
  if (!design) return;
  if (*design) {
    Line(out, label,
         fmt::format("{} {:.6g}, within {:.1e} of the best there is", symbol, (*design)->value,
                     std::max((*design)->gap(), 0.0)));
  } else {
    Line(out, label, "not found: " + design->error().message);
  }
}

void Links(std::string& out, const Plan& plan) {
  out += "\nbest weights\n";
  DesignLine(out, "fastest (33)", "Phi_cr", plan.fastest);
  DesignLine(out, "most robust (35)", "Phi_ss", plan.robust);
  if (!plan.fastest) Line(out, "", "not asked for");
  const auto& names = plan.graph.names;
  const auto links = plan.graph.graph.links();
  const std::size_t width = Widest(names);
  const Design *fastest = Have(plan.fastest), *robust = Have(plan.robust);
  fmt::format_to(std::back_inserter(out), "\n{:<{}} {:<{}} {:>10}{}{}{}\n", "link", width, "", width, "weight",
                 plan.whole() ? fmt::format(" {:>10}", "resistance") : "",
                 fastest ? fmt::format(" {:>10}", "fastest") : "", robust ? fmt::format(" {:>10}", "robust") : "");
  for (std::size_t e = 0; e < std::min(links.size(), kRowsMax); ++e) {
    const auto [a, b, weight] = links[e];
    fmt::format_to(std::back_inserter(out), "{:<{}} {:<{}} {:>10.6g}{}{}{}\n", names[a], width, names[b], width, weight,
                   plan.whole() ? fmt::format(" {:>10.4f}", plan.resistances[e]) : "",
                   fastest ? fmt::format(" {:>10.6f}", fastest->weights[e]) : "",
                   robust ? fmt::format(" {:>10.6f}", robust->weights[e]) : "");
  }
  if (links.size() > kRowsMax) fmt::format_to(std::back_inserter(out), "and {} more\n", links.size() - kRowsMax);
}

std::string Centrality(double value) {
  return std::isinf(value) ? "infinite" : fmt::format("{:.4f}", value);
}

void Nodes(std::string& out, const Plan& plan) {
  const auto& names = plan.graph.names;
  const std::size_t width = Widest(names);
  fmt::format_to(std::back_inserter(out), "\n{:<{}} {:>6}{}\n", "node", width, "links",
                 plan.whole() ? fmt::format(" {:>11}", "centrality") : "");
  for (std::uint32_t i = 0; i < std::min(names.size(), kRowsMax); ++i) {
    fmt::format_to(std::back_inserter(out), "{:<{}} {:>6}{}\n", names[i], width, plan.graph.graph.Degree(i),
                   plan.whole() ? fmt::format(" {:>11}", Centrality(plan.centrality[i])) : "");
  }
  if (names.size() > kRowsMax) fmt::format_to(std::back_inserter(out), "and {} more\n", names.size() - kRowsMax);
}

void Suggestions(std::string& out, const Plan& plan) {
  if (plan.suggestions.empty()) return;
  const auto& names = plan.graph.names;
  const std::size_t width = Widest(names);
  fmt::format_to(std::back_inserter(out), "\n{:<{}} {:<{}} {:>10} {:>10} {:>10}   each at its best cycle\n",
                 "link to add", std::max<std::size_t>(width, 5), "", width, "lambda_2", "Phi_cr", "Phi_ss");
  const auto row = [&](std::string_view a, std::string_view b, const Best& best) {
    fmt::format_to(std::back_inserter(out), "{:<{}} {:<{}} {:>10.4f} {:>10.4f} {:>10.4f}\n", a,
                   std::max<std::size_t>(width, 11), b, width, best.lambda2, best.convergence_factor, best.dispersion);
  };
  row("none", "", plan.best);
  for (const Suggestion& suggestion : plan.suggestions) row(names[suggestion.a], names[suggestion.b], suggestion.with);
}

Json ToJson(const Best& best) {
  return {{"lambda_2", best.lambda2},
          {"lambda_n", best.lambda_n},
          {"fastest_cycle", best.fastest_cycle},
          {"fastest_phi_cr", best.convergence_factor},
          {"steadiest_cycle", best.steadiest_cycle},
          {"steadiest_phi_ss", best.dispersion}};
}

Json ToJson(const std::optional<Result<Design>>& design) {
  if (!design) return nullptr;
  if (!*design) return {{"error", design->error().message}};
  return {{"value", (*design)->value},
          {"bound", (*design)->bound},
          {"gap", (*design)->gap()},
          {"weights", (*design)->weights}};
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// In quotes, as DOT has it, and with every backslash twice: one at the end would take the mark behind it.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string Script(const Plan& plan, const Spectrum& spectrum) {
  std::string points;
  for (int i = 1; i < kPlotPoints; ++i) {
    const double gamma = plan.stable_below * i / kPlotPoints;
    fmt::format_to(std::back_inserter(points), "{:.9g} {:.9g} {:.9g}\n", gamma, ConvergenceFactor(spectrum, gamma),
                   Dispersion(spectrum, gamma, plan.sigma * plan.sigma));
  }
  // Nothing of the graph's name or nodes is in here: gnuplot would obey it.
  return fmt::format(
      "$curve << EOD\n{}EOD\n"
      "set multiplot layout 1,2\nset xlabel 'update cycle gamma'\nset xrange [0:{:.9g}]\nset grid\n"
      "set ylabel 'Phi_cr (15)' noenhanced\nset yrange [0:1]\nunset key\n"
      "set title 'convergence factor, best cycle (27) dashed'\n"
      "set arrow 1 from {:.9g},graph 0 to {:.9g},graph 1 nohead dashtype 2\n"
      "plot $curve using 1:2 with lines linewidth 2\n"
      "set ylabel 'Phi_ss (20)' noenhanced\nset autoscale y\nset logscale y\n"
      "set title 'dispersion, best cycle (31) dashed'\n"
      "set arrow 1 from {:.9g},graph 0 to {:.9g},graph 1 nohead dashtype 2\n"
      "plot $curve using 1:3 with lines linewidth 2\nunset multiplot\n",
      points, plan.stable_below, plan.best.fastest_cycle, plan.best.fastest_cycle, plan.best.steadiest_cycle,
      plan.best.steadiest_cycle);
}

}    // namespace

std::string RenderText(const Plan& plan) {
  std::string out;
  Shape(out, plan);
  AtGamma(out, plan);
  Links(out, plan);
  Nodes(out, plan);
  Suggestions(out, plan);
  return out;
}

std::string RenderJson(const Plan& plan) {
  const Graph& graph = plan.graph.graph;
  const auto& names = plan.graph.names;
  Json out{{"graph", plan.source}, {"notes", plan.graph.notes}, {"gamma", plan.gamma}, {"sigma", plan.sigma}};
  out["best"] = ToJson(plan.best);
  out["stable"] = plan.stable;
  out["stable_below"] = plan.stable_below;
  out["stable_below_without_eigenvalues"] = plan.stable_below_simple;
  out["gdrl_gain_max"] = plan.gdrl_gain_max;
  out["phi_cr"] = plan.convergence_factor;
  out["rounds_to_settle"] = OrNull(plan.rounds_to_settle);
  out["seconds_to_settle"] = OrNull(plan.seconds_to_settle);
  out["phi_ss"] = plan.dispersion;
  out["phi_ss_of_variances"] = OrNull(plan.dispersion_of_variances);
  out["phi_ss_of_covariance"] = OrNull(plan.dispersion_of_covariance);
  out["phi_ss_eq24"] = plan.dispersion_eq24;
  out["phi_ss_eq25"] = plan.dispersion_eq25;
  out["phi_ss_simulated"] =
      plan.simulated ? Json{{"mean", plan.simulated->mean}, {"standard_error", plan.simulated->standard_error}}
                     : Json(nullptr);
  out["over_throttling_percent"] = OrNull(plan.over_throttling);
  out["resistance_total"] = plan.resistance_total;
  out["nodes"] = Json::array();
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    out["nodes"].push_back(
        {{"name", names[i]}, {"links", graph.Degree(i)}, {"centrality", plan.whole() ? plan.centrality[i] : kUnknown}});
  }
  out["links"] = Json::array();
  for (std::size_t e = 0; e < graph.links().size(); ++e) {
    const WeightedLink& link = graph.links()[e];
    out["links"].push_back({{"a", names[link.a]},
                            {"b", names[link.b]},
                            {"weight", link.weight},
                            {"resistance", plan.whole() ? plan.resistances[e] : kUnknown}});
  }
  for (std::size_t i = 0; !plan.resistances_of_all.empty() && i < graph.size(); ++i) {
    const auto row = plan.resistances_of_all.begin() + static_cast<std::ptrdiff_t>(i * graph.size());
    out["resistances"].push_back(std::vector<double>(row, row + graph.size()));
  }
  out["fastest"] = ToJson(plan.fastest);
  out["most_robust"] = ToJson(plan.robust);
  out["suggestions"] = Json::array();
  for (const Suggestion& suggestion : plan.suggestions) {
    Json entry{{"a", names[suggestion.a]}, {"b", names[suggestion.b]}};
    entry.update(ToJson(suggestion.with));
    out["suggestions"].push_back(std::move(entry));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string RenderDot(const Plan& plan) {
  const Graph& graph = plan.graph.graph;
  const Design *fastest = Have(plan.fastest), *robust = Have(plan.robust);
  std::string out = "graph plan {\n";
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "  {}{};\n", Quoted(plan.graph.names[i]),
                   plan.whole() ? fmt::format(" [centrality=\"{:.6g}\"]", plan.centrality[i]) : "");
  }
  for (std::size_t e = 0; e < graph.links().size(); ++e) {
    const WeightedLink& link = graph.links()[e];
    fmt::format_to(std::back_inserter(out), "  {} -- {} [weight=\"{}\"{}{}{}];\n", Quoted(plan.graph.names[link.a]),
                   Quoted(plan.graph.names[link.b]), link.weight,
                   plan.whole() ? fmt::format(", resistance=\"{:.6g}\"", plan.resistances[e]) : "",
                   fastest ? fmt::format(", fastest=\"{:.6g}\"", fastest->weights[e]) : "",
                   robust ? fmt::format(", robust=\"{:.6g}\"", robust->weights[e]) : "");
  }
  return out + "}\n";
}

Result<void> Plot(const Plan& plan, const std::filesystem::path& file, const std::string& gnuplot) {
  if (!plan.whole()) return Fail(fmt::format("only graphs of up to {} nodes are drawn", kDenseNodesMax));
  return DrawPicture({.width = 900, .height = 420, .script = Script(plan, Decompose(plan.graph.graph))}, file, gnuplot);
}

}    // namespace dthrottle::plan
