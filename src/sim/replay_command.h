#pragma once

#include "sim/command.h"

namespace dthrottle::sim {

void AddReplayCommand(CLI::App& app, int& status);

}    // namespace dthrottle::sim
