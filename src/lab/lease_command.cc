#include "lab/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "io/csv.h"
#include "io/number_option.h"
#include "io/picture.h"
#include "io/progress.h"
#include "lab/effort.h"
#include "lab/fleet_options.h"
#include "lab/lease_fleet.h"

namespace dthrottle::lab {
namespace {

struct LeaseOptions {
  std::string scenario = "seven", algorithm = "fair_share";
  bool strict = false, as_documented = false;
  std::uint64_t seed = 1;
  std::uint32_t seeds = 1, jobs = 1;
  double minutes = 0;    // 0: the scenario's
  std::string csv, picture, gnuplot = "gnuplot";
};

LeaseScenario ScenarioOf(const LeaseOptions& options) {
  LeaseScenario scenario = DocumentedScenario(options.scenario);
  const auto names = Names(lease::Algorithm());
  scenario.resource.algorithm =
      static_cast<lease::Algorithm>(std::ranges::find(names, options.algorithm) - names.begin());
  scenario.resource.strict = options.strict;
  scenario.tells_learning = !options.as_documented;
  if (options.minutes > 0) scenario.lasts = Duration(static_cast<Duration::rep>(options.minutes * 60e9));
  return scenario;
}

// "median (10th to 90th percentile)". What is between two runs is on the line from one to the other.
std::string SpreadOf(std::vector<double> values, std::string_view unit) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double p) {
    const double place = p * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return std::lerp(values[below], values[above], place - static_cast<double>(below));
  };
  if (values.size() == 1) return fmt::format("{:.2f}{}", values[0], unit);
  return fmt::format("{:.2f}{} ({:.2f} to {:.2f})", at(0.5), unit, at(0.1), at(0.9));
}

std::string Summary(const LeaseScenario& scenario, const std::vector<LeaseRun>& runs) {
  const auto line = [&](std::string_view label, std::string_view unit, auto figure) {
    std::vector<double> values;
    for (const LeaseRun& run : runs) values.push_back(figure(run));
    return fmt::format("{:<34} {}\n", label, SpreadOf(std::move(values), unit));
  };
  const auto count = [](auto n) { return static_cast<double>(n); };
  return fmt::format("scenario {}, {}{}, {:g} min, runs: {}; median (10th to 90th percentile) of these\n",
                     scenario.name, Name(scenario.resource.algorithm), scenario.resource.strict ? ", strict" : "",
                     Seconds(scenario.lasts) / 60, runs.size()) +
         line("handed out of what was wanted", " %", [](const LeaseRun& r) { return 100 * r.handed_out_of_wanted(); }) +
         line("handed out of the capacity", " %", [](const LeaseRun& r) { return 100 * r.handed_out_of_limit(); }) +
         line("samples above the capacity", "", [&](const LeaseRun& r) { return count(r.samples_above()); }) +
         line("highest", " %", [](const LeaseRun& r) { return 100 * r.peak(); }) +
         line("mean of the samples above", " %", [](const LeaseRun& r) { return 100 * r.mean_above(); }) +
         line("answers short of what was out", "", [&](const LeaseRun& r) { return count(r.short_answers); });
}

std::string Table(const std::vector<LeaseSample>& samples) {
  Csv csv;
  csv.Row("seconds", "wants", "has", "capacity", "shortfall");
  for (const LeaseSample& s : samples) csv.Row(s.seconds, s.wants, s.has, s.capacity, s.shortfall());
  return csv.text();
}

// Like the document's charts: what is wanted, what is held, what there is, and by how much the one exceeds the other.
Picture Chart(const std::vector<LeaseSample>& samples) {
  Picture picture;
  std::string& script = picture.script;
  script = "$samples << EOD\n";
  for (const LeaseSample& s : samples) {
    script += fmt::format("{} {} {} {} {}\n", s.seconds / 60, s.wants, s.has, s.capacity, s.shortfall());
  }
  script +=
      "EOD\nset xlabel 'minutes'\nset ylabel 'capacity'\nset yrange [0:*]\nset grid\nset key outside top horizontal\n"
      "plot $samples using 1:2 with lines lc rgb '#999999' title 'wants', "
      "$samples using 1:4 with steps lc rgb '#d55e00' lw 2 title 'capacity', "
      "$samples using 1:3 with lines lc rgb '#0072b2' lw 2 title 'has', "
      "$samples using 1:5 with filledcurves y1=0 lc rgb '#e69f00' title 'shortfall'\n";
  return picture;
}

int RunCommand(const LeaseOptions& options) {
  if (const int status = CheckOutputs({.csv = options.csv, .plot = options.picture}); status != EX_OK) return status;
  const LeaseScenario scenario = ScenarioOf(options);
  std::optional<Progress> progress("dthrottle-sim");
  std::vector<std::optional<LeaseRun>> made(options.seeds);
  std::atomic<std::uint32_t> done{0};
  DoAll(options.seeds, options.jobs, [&](std::size_t i) {
    if (Progress::stopped() && i > 0) return;
    made[i] = RunLeases(scenario, options.seed + i);
    progress->At("scenario " + options.scenario, static_cast<double>(++done) / options.seeds);
  });
  const bool interrupted = Progress::stopped();
  progress.reset();
  std::vector<LeaseRun> runs;
  for (auto& run : made) {
    if (run) runs.push_back(std::move(*run));
  }
  const LeaseRun& first = runs.front();
  std::string text = Summary(scenario, runs);
  for (const LeaseIncident& incident : first.incidents) {
    if (options.seeds > 1) break;
    text += fmt::format("{:6.0f} s  {}\n", incident.seconds, incident.what);
  }
  if (const int status = options.csv == "-" ? EX_OK : WriteFile("-", text); status != EX_OK) return status;
  if (const int status = WriteFile(options.csv, Table(first.samples)); status != EX_OK) return status;
  if (options.picture.empty()) return UnlessInterrupted(EX_OK, interrupted);
  const auto drawn = DrawPicture(Chart(first.samples), options.picture, options.gnuplot);
  return drawn ? UnlessInterrupted(EX_OK, interrupted) : Complain(EX_UNAVAILABLE, "no plot: " + drawn.error().message);
}

}    // namespace

void AddLeaseCommand(CLI::App& app, int& status) {
  auto options = std::make_shared<LeaseOptions>();
  CLI::App* command = app.add_subcommand("lease", "Doorman's scenarios: a tree of lease servers and their clients.");
  const auto names = Names(lease::Algorithm());
  const auto scenarios = LeaseScenarios();
  const std::vector<std::string> algorithms(names.begin(), names.end());
  command->add_option("--scenario", options->scenario, "one to seven")
      ->check(CLI::IsMember(std::vector<std::string>(scenarios.begin(), scenarios.end())));
  command->add_option("--algorithm", options->algorithm, "how capacity is divided")->check(CLI::IsMember(algorithms));
  command->add_flag("--strict", options->strict, "capacity moves only after it has come back");
  command->add_flag("--as-documented", options->as_documented,
                    "new masters do not tell their parent that they are learning");
  command->add_option("--seed", options->seed, "of the first run");
  command->add_option("--seeds", options->seeds, "runs, each with the next seed")->check(CLI::Range(1, 100000));
  AddJobs(*command, options->jobs);
  command->add_option("--minutes", options->minutes, "how long a run lasts")->check(NumberFrom(2, 10000));
  command->add_option("--csv", options->csv, "a file for the samples of the first run, or - for standard output");
  command->add_option("--plot", options->picture, "an .svg or .png file for the same");
  command->add_option("--gnuplot", options->gnuplot, "the program that draws");
  command->callback([options, &status] { status = RunCommand(*options); });
}

}    // namespace dthrottle::lab
