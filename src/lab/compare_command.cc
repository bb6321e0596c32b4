#include "lab/compare_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

#include "lab/fleet_options.h"
#include "lab/render.h"

namespace dthrottle::lab {
namespace {

constexpr Share kAll[] = {Share::kLocal, Share::kDebit, Share::kForecast, Share::kCapacity};

struct CompareOptions {
  FleetFileOptions fleet;
  OutputOptions output;
  std::vector<std::string> schemes;
};

std::string NoteOn(Share share) {
  return share == Share::kLocal ? "an N-th of burst and rate on each host, no messages needed" : "";
}

int Compare(const CompareOptions& options) {
  FleetFile file;
  if (const int status = ReadFleet(options.fleet, file); status != EX_OK) return status;
  std::vector<Scheme> schemes;
  for (const Share share : kAll) {
    const std::string name(Name(share));
    const bool wanted = options.schemes.empty() ||
                        std::find(options.schemes.begin(), options.schemes.end(), name) != options.schemes.end();
    if (wanted) schemes.push_back({name, NoteOn(share), SimulateAll(file, share)});
  }
  if (options.output.csv != "-" && options.output.measures != "-") {
    fmt::print("{}{}", RenderFleet(file, InputName(options.fleet.path)), RenderComparison(schemes));
  }
  return WriteOutputs(options.output, schemes);
}

}    // namespace

void AddCompareCommand(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("compare", "Simulate a fleet with its limits shared in each way");
  const auto options = std::make_shared<CompareOptions>();
  AddFleetOptions(*command, options->fleet);
  AddOutputOptions(*command, options->output);
  command->add_option("--schemes", options->schemes, "Only these: local, debit, forecast, capacity")
      ->delimiter(',')
      ->check(CLI::IsMember({"local", "debit", "forecast", "capacity"}));
  command->callback([options, &status] { status = Compare(*options); });
}

}    // namespace dthrottle::lab
