#pragma once

#include "sim/command.h"

namespace dthrottle::sim {

void AddCompareCommand(CLI::App& app, int& status);

}    // namespace dthrottle::sim
