// Options that subcommands on a fleet file share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/progress.h"
#include "lab/command.h"
#include "lab/effort.h"
#include "lab/fleet_file.h"
#include "lab/render.h"

namespace dthrottle::lab {

struct FleetFileOptions {
  std::string path;
  std::int64_t seed = -1, seeds = -1;    // -1: the file's
  std::uint32_t jobs = 1;
};

// Tells a terminal how far the runs of one scheme are, of `schemes` in all, and heeds Ctrl-C.
Effort EffortOf(const FleetFileOptions& options, Progress& progress, std::string_view scheme, std::size_t index,
                std::size_t schemes);

struct OutputOptions {
  std::string csv{}, measures{}, plot{}, gnuplot = "gnuplot";    // empty: not asked for
};

void AddFleetOptions(CLI::App& command, FleetFileOptions& options);
void AddOutputOptions(CLI::App& command, OutputOptions& options);

// EX_OK and the file, or a word about each problem. Warnings are said too.
int ReadFleet(const FleetFileOptions& options, FleetFile& file);

// EX_OK, or a word about what could not be written after the run.
int CheckOutputs(const OutputOptions& options);
int WriteOutputs(const OutputOptions& options, const std::vector<Scheme>& schemes);

}    // namespace dthrottle::lab
