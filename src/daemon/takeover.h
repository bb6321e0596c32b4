// What a program that takes over would fail over when the one before it is gone, found while that one still answers.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "io/handover.h"

namespace dthrottle {

// What the running daemon, under `settings`, tells the program that it asks: where it listens, and the keys for which
// the service manager has passed a socket. "NAME=VALUE", for the environment.
std::string ListensVariable(const std::vector<HandedListener>& listening, const Settings& settings);

// Adds an error for each file and each address of the settings that this process, as the next program, could not have.
// Makes nothing and listens nowhere. It cannot tell whether another process holds a file, or listens on a Unix socket.
void FindTroubleOfTakeover(LoadedSettings& loaded);

}    // namespace dthrottle
