#pragma once

#include "sim/command.h"

namespace dthrottle::sim {

void AddLeaseCommand(CLI::App& app, int& status);

}    // namespace dthrottle::sim
