#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

void AddReplayCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
