// dthrottle-plan: says in advance what a graph of hosts that share capacity will do. See man/dthrottle-plan.1.
#include <fmt/format.h>
#include <sysexits.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "config/load.h"
#include "io/files.h"
#include "io/number_option.h"
#include "io/output_main.h"
#include "io/progress.h"
#include "plan/divided_graph.h"
#include "plan/input.h"
#include "plan/model/model.h"
#include "plan/plan.h"
#include "plan/render.h"
#include "plan/spectrum.h"

namespace dthrottle::plan {
namespace {

constexpr int kInterrupted = 128 + SIGINT;    // as a shell has it

struct Options {
  std::string graph;
  std::vector<std::string> settings;
  std::string covariance;    // a file; empty: not given
  std::string dot, plot, csdp = "csdp", gnuplot = "gnuplot";
  std::uint64_t seed = 1;
  bool as_json = false, no_weights = false;
  double gamma = 0, limit = 0, period_s = 0;    // 0: not given
  std::int64_t rounds = -1;                     // -1: not given
  Question question;
};

Input ReadSettings(Options& options) {
  std::vector<HostSettings> hosts;
  for (const std::string& path : options.settings) {
    const auto text = ReadFile(path, kSettingsBytesMax);
    if (!text) return Refused(EX_NOINPUT, text.error().message);
    LoadedSettings loaded = ParseSettings(*text, path, "/run/dthrottle", {}, ReadNamedFile);
    if (!loaded.ok()) {
      for (const Problem& problem : loaded.problems) fmt::print(stderr, "{}\n", Format(problem));
      return {std::nullopt, "", EX_CONFIG};
    }
    hosts.push_back({path, std::move(loaded.settings)});
  }
  auto divided = DividedFleetGraph(hosts);
  if (!divided) return Refused(EX_CONFIG, divided.error().message);
  // One round an exchange, unless said otherwise.
  const Settings& first = hosts.front().settings;
  if (!options.question.period_s) {
    options.question.period_s = Seconds(*divided ? first.capacity.interval : first.peers.period);
  }
  return Take(*divided ? Result<NamedGraph>(std::move(**divided)) : FleetGraph(hosts),
              fmt::format("settings of {} hosts", hosts.size()), EX_CONFIG);
}

Input ReadInput(Options& options) {
  if (!options.settings.empty()) return ReadSettings(options);
  return ReadGraph(options.graph);
}

// Numbers with blanks or commas between, a row for each node. It has to be symmetric, and no variance below 0, also not
// that of a sum of changes: no eigenvalue is.
int ReadCovariance(Options& options) {
  constexpr std::size_t kBytesMax = std::size_t{64} << 20;
  if (options.covariance.empty()) return EX_OK;
  auto text = ReadFile(options.covariance, kBytesMax);
  if (!text) return Complain(EX_NOINPUT, text.error().message);
  const auto bad = [&](std::string_view why) {
    return Complain(EX_DATAERR, fmt::format("{}: {}", options.covariance, why));
  };
  std::ranges::replace(*text, ',', ' ');
  std::vector<double>& covariance = options.question.covariance;
  std::istringstream numbers(*text);
  for (double value = 0; numbers >> value;) covariance.push_back(value);
  const auto n = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(covariance.size()))));
  if (!numbers.eof() || n * n != covariance.size() || n == 0) return bad("must be as many numbers in each row as rows");
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const double here = covariance[i * n + j], there = covariance[j * n + i];
      if (std::abs(here - there) > 1e-9 * std::max(1.0, std::abs(here))) return bad("must be symmetric");
    }
    if (covariance[i * n + i] < 0) return bad("no variance may be below 0");
  }
  if (n > kDenseNodesMax) return EX_OK;    // refused for its size, once there is a graph
  constexpr double kRounding = 1e-9;       // of a file's digits, as a part of the largest eigenvalue
  const std::vector<double> eigenvalues = Decompose(covariance, n).values;
  if (eigenvalues.front() < -kRounding * eigenvalues.back()) {
    return bad(fmt::format("is no covariance: its smallest eigenvalue is {:.6g}", eigenvalues.front()));
  }
  return EX_OK;
}

void AddOptions(CLI::App& app, Options& options) {
  Question& question = options.question;
  app.add_option("GRAPH", options.graph, "A file of links or DOT, \"-\", or a graph by name such as ring:10");
  app.add_option("--settings", options.settings, "Instead: the settings of each host, dthrottled.toml");
  app.add_option("--gamma,-g", options.gamma, "The update cycle; by itself the fastest one")
      ->check(NumberFrom(1e-9, 1e9));
  app.add_option("--sigma,-s", question.sigma, "Standard deviation of a node's change of requests in a cycle")
      ->check(NumberFrom(0, 1e9))
      ->capture_default_str();
  app.add_option("--variances", question.variances, "Instead, for Phi_ss: the variance of each node's change, in order")
      ->delimiter(',')
      ->check(NumberFrom(0, 1e18));
  app.add_option("--covariance", options.covariance, "Instead, for Phi_ss: a file with a row of covariances for each node");
  app.add_option("--limit", options.limit, "Sum of all limits, requests a cycle: foretell over-throttling")
      ->check(NumberFrom(1e-9, 1e18));
  app.add_option("--period", options.period_s, "Seconds a round takes")->check(NumberFrom(1e-6, 1e6));
  app.add_option("--rounds", options.rounds, "Rounds to simulate; 0: none; by itself about a second's worth")
      ->check(CLI::Range(std::int64_t{0}, static_cast<std::int64_t>(kRoundsMax)));
  app.add_option("--seed", options.seed, "Seed of the simulation")->capture_default_str();
  app.add_option("--suggest", question.suggestions, "Links to suggest")
      ->check(CLI::Range(std::uint32_t{0}, kSuggestionsMax))
      ->capture_default_str();
  app.add_flag("--no-weights", options.no_weights, "Do not look for the best weights");
  app.add_flag("--json,-j", options.as_json, "Print JSON");
  app.add_option("--dot", options.dot, "Write the graph to this file, as DOT");
  app.add_option("--plot", options.plot, "Draw what gamma does into this .svg or .png file");
  app.add_option("--csdp", options.csdp, "The program that solves semidefinite programs")->capture_default_str();
  app.add_option("--gnuplot", options.gnuplot, "The program that draws")->capture_default_str();
  app.set_version_flag("--version,-V", "dthrottle-plan " DTHROTTLE_VERSION);
  app.footer(fmt::format("Graphs by name: {}", kGenerators));
}

int Write(const Plan& plan, const Options& options) {
  fmt::print("{}", options.as_json ? RenderJson(plan) : RenderText(plan));
  if (std::fflush(stdout) != 0) return Complain(EX_IOERR, "the output could not be written");
  if (!options.dot.empty()) {
    if (const auto written = WriteOutput(options.dot, RenderDot(plan)); !written) {
      return Complain(EX_CANTCREAT, written.error().message);
    }
  }
  if (!options.plot.empty()) {
    if (const auto drawn = Plot(plan, options.plot, options.gnuplot); !drawn) {
      return Complain(EX_UNAVAILABLE, "no plot: " + drawn.error().message);
    }
  }
  return EX_OK;
}

int Main(int argc, char** argv) {
  CLI::App app("Says in advance what a graph of hosts that share capacity will do.", "dthrottle-plan");
  Options options;
  AddOptions(app, options);
  int status = EX_OK;    // of `model`
  AddModelCommand(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? EX_OK : EX_USAGE;
  }
  if (!app.get_subcommands().empty()) return status;
  if (options.graph.empty() == options.settings.empty()) {
    return Complain(EX_USAGE, "one graph is needed: GRAPH, or --settings FILE...");
  }
  if (options.gamma > 0) options.question.gamma = options.gamma;
  if (options.limit > 0) options.question.limit_total = options.limit;
  if (options.period_s > 0) options.question.period_s = options.period_s;
  if (options.rounds >= 0) options.question.rounds = static_cast<std::uint64_t>(options.rounds);
  if (options.rounds > 0 && options.question.rounds < kRoundsMin) {
    return Complain(EX_USAGE, fmt::format("--rounds: {} is too few: allowed are 0 and {} to {}", options.rounds,
                                          kRoundsMin, kRoundsMax));
  }
  if (options.no_weights) {
    options.question.solver = std::nullopt;
  } else {
    options.question.solver->program = options.csdp;
  }
  if (const int read = ReadCovariance(options); read != EX_OK) return read;
  Input input = ReadInput(options);
  if (!input.graph) return input.status;
  Prng prng(options.seed);
  std::optional<Progress> progress("dthrottle-plan");
  const Result<Plan> plan =
      MakePlan(*std::move(input.graph), input.source, options.question, prng,
               [&](std::string_view what, std::optional<double> part) { return progress->At(what, part); });
  progress.reset();
  if (!plan) return Complain(EX_DATAERR, plan.error().message);
  status = Write(*plan, options);
  if (status != EX_OK || !plan->interrupted) return status;
  return Complain(kInterrupted, "interrupted: what was not reached is left out");
}

}    // namespace
}    // namespace dthrottle::plan

int main(int argc, char** argv) {
  return dthrottle::WithOutput([&] { return dthrottle::plan::Main(argc, argv); });
}
