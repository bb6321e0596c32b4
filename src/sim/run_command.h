#pragma once

#include "sim/command.h"

namespace dthrottle::sim {

void AddRunCommand(CLI::App& app, int& status);

}    // namespace dthrottle::sim
