#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

void AddLeaseCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
