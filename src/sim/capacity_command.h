#pragma once

#include "sim/command.h"

namespace dthrottle::sim {

// dthrottle-sim capacity: the papers' figures.
void AddCapacityCommand(CLI::App& app, int& status);

}    // namespace dthrottle::sim
