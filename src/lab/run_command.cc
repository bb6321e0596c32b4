#include "lab/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>

#include "lab/fleet_options.h"
#include "lab/render.h"

namespace dthrottle::lab {
namespace {

constexpr std::size_t kRowsDefault = 60;

struct RunOptions {
  FleetFileOptions fleet;
  OutputOptions output;
  std::size_t rows = kRowsDefault;
};

int Run(const RunOptions& options) {
  if (const int status = CheckOutputs(options.output); status != EX_OK) return status;
  FleetFile file;
  if (const int status = ReadFleet(options.fleet, file); status != EX_OK) return status;
  std::optional<Progress> progress("dthrottle-sim");
  const std::vector<Scheme> schemes = {
      {"fleet", "", SimulateAll(file, std::nullopt, EffortOf(options.fleet, *progress, "fleet", 0, 1))}};
  const bool interrupted = Progress::stopped();
  progress.reset();
  if (options.output.csv != "-" && options.output.measures != "-") {
    fmt::print("{}{}", RenderFleet(file, InputName(options.fleet.path), &schemes.front().series),
               RenderRun(schemes.front().series, options.rows));
  }
  return UnlessInterrupted(WriteOutputs(options.output, schemes), interrupted);
}

}    // namespace

void AddRunCommand(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("run", "Simulate a fleet: how far it is from one bucket for all");
  const auto options = std::make_shared<RunOptions>();
  AddFleetOptions(*command, options->fleet);
  AddOutputOptions(*command, options->output);
  command->add_option("--rows", options->rows, "Seconds to print")->capture_default_str();
  command->callback([options, &status] { status = Run(*options); });
}

}    // namespace dthrottle::lab
