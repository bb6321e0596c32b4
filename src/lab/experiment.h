// Runs of a fleet file: under one seed, under several, and with its limits shared in another way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/fleet_file.h"
#include "lab/measure.h"

namespace dthrottle::lab {

struct Outcome {
  Measures measures;
  std::vector<Second> seconds;
  std::uint64_t digest = 0;    // of everything sent and every verdict: equal for runs that were the same
};

// One run. With a `scheme` every rule is shared that way; local is then the static split, an N-th of burst and rate for
// each host. Without, rules are as the file has them. Rules in mode shadow are enforced.
Outcome Simulate(const FleetFile& file, std::optional<Share> scheme, std::uint64_t seed);

// Several runs of the same.
struct Series {
  std::uint32_t first_seed = 1;
  std::vector<Outcome> runs;    // under the seeds from first_seed on

  double Mean(double Measures::*value) const;
  double Deviation(double Measures::*value) const;    // of the runs; 0 for one
};
Series SimulateAll(const FleetFile& file, std::optional<Share> scheme);

}    // namespace dthrottle::lab
