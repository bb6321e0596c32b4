#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

// dthrottle-sim capacity: the papers' figures.
void AddCapacityCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
