// Runs of a fleet file: under one seed, under several, and with its limits shared in another way.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lab/effort.h"
#include "lab/fleet_file.h"
#include "lab/measure.h"

namespace dthrottle::lab {

// How limits are shared in a run: as the file says, all in one way, or by a baseline.
struct SharedAs {
  SharedAs(std::nullopt_t) {}
  SharedAs(Share way) : share(way) {}
  SharedAs(BaselineKind kind) : baseline(kind) {}

  std::optional<Share> share;
  std::optional<BaselineKind> baseline;
};

struct Outcome {
  Measures measures;
  std::vector<Second> seconds;
  std::uint64_t digest = 0;    // of everything sent and every verdict: equal for runs that were the same
  Duration lasted{};           // whole seconds, if it was ended early: figures are of what was done
  bool whole = true;           // it was not
};

// One run. With a `share` every rule is shared that way; local is then the static split, an N-th of burst and rate for
// each host. Without, rules are as the file has them. Rules in mode shadow are enforced. `go_on` is told which part is
// done; false ends the run.
Outcome Simulate(const FleetFile& file, const SharedAs& as, std::uint64_t seed,
                 const std::function<bool(double part)>& go_on = {});

// Several runs of the same; after an early end those that are whole, or what there is of the first.
struct Series {
  std::uint32_t first_seed = 1;
  std::vector<Outcome> runs;    // under the seeds from first_seed on

  bool whole() const { return !runs.empty() && runs.front().whole; }    // its runs

  double Mean(double Measures::*value) const;
  double Deviation(double Measures::*value) const;    // of the runs; 0 for one
};
Series SimulateAll(const FleetFile& file, const SharedAs& as, const Effort& effort = {});

}    // namespace dthrottle::lab
