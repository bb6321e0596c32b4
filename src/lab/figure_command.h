#pragma once

#include "lab/command.h"

namespace dthrottle::lab {

// dthrottle-sim figure: the sources' figures.
void AddFigureCommand(CLI::App& app, int& status);

}    // namespace dthrottle::lab
