#include "lab/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include "lab/fleet_options.h"
#include "lab/render.h"

namespace dthrottle::lab {
namespace {

struct Way {
  std::string_view name;
  SharedAs as;
  std::string_view note;
  bool by_itself = true;    // compared also where nobody names it
};

const Way kAll[] = {
    {"local", Share::kLocal, "an N-th of burst and rate on each host, no messages needed"},
    {"debit", Share::kDebit, ""},
    {"forecast", Share::kForecast, ""},
    {"capacity", Share::kCapacity, ""},
    {"grd", BaselineKind::kGrd,
     "global random drop, for comparison; knows burst and rate alone; its frames are not counted", false},
    {"fps", BaselineKind::kFps,
     "flow proportional share, for comparison; knows burst and rate alone; its frames are not counted", false},
};

struct CompareOptions {
  FleetFileOptions fleet;
  OutputOptions output;
  std::vector<std::string> schemes;
};

int Compare(const CompareOptions& options) {
  if (const int status = CheckOutputs(options.output); status != EX_OK) return status;
  FleetFile file;
  if (const int status = ReadFleet(options.fleet, file); status != EX_OK) return status;
  std::vector<Way> ways;
  for (const Way& way : kAll) {
    const bool named = std::ranges::count(options.schemes, way.name) > 0;
    if (options.schemes.empty() ? way.by_itself : named) ways.push_back(way);
  }
  std::vector<Scheme> schemes;
  std::optional<Progress> progress("dthrottle-sim");
  for (std::size_t i = 0; i < ways.size() && !Progress::stopped(); ++i) {
    const Effort effort = EffortOf(options.fleet, *progress, ways[i].name, i, ways.size());
    Series series = SimulateAll(file, ways[i].as, effort);
    if (!series.whole()) break;    // a part of a run compares with nothing
    std::string note(ways[i].note), missing = MissingRuns(file, series);
    if (!missing.empty()) note += (note.empty() ? "" : "; ") + missing;
    schemes.push_back({std::string(ways[i].name), std::move(note), std::move(series)});
  }
  const bool interrupted = Progress::stopped();
  progress.reset();
  if (schemes.empty()) return UnlessInterrupted(EX_OK, interrupted);
  if (options.output.csv != "-" && options.output.measures != "-") {
    fmt::print("{}{}", RenderFleet(file, InputName(options.fleet.path)), RenderComparison(schemes));
  }
  return UnlessInterrupted(WriteOutputs(options.output, schemes), interrupted);
}

}    // namespace

void AddCompareCommand(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("compare", "Simulate a fleet with its limits shared in each way");
  const auto options = std::make_shared<CompareOptions>();
  AddFleetOptions(*command, options->fleet);
  AddOutputOptions(*command, options->output);
  command->add_option("--schemes", options->schemes, "Only these: local, debit, forecast, capacity, and the baselines grd and fps")
      ->delimiter(',')
      ->check(CLI::IsMember({"local", "debit", "forecast", "capacity", "grd", "fps"}));
  command->callback([options, &status] { status = Compare(*options); });
}

}    // namespace dthrottle::lab
