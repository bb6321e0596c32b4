#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

void AddCompareCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
