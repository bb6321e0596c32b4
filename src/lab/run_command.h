#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

void AddRunCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
