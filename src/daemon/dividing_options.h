// What the exchange of capacity needs to know, from the settings, the rules and the keys.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/keys.h"
#include "io/peer_thread.h"
#include "rule/rulebook.h"

namespace dthrottle {

// None if no rule divides its limit. Fails with a sentence for people, which names the setting.
Result<std::optional<CapacityOptions>> MakeCapacityOptions(const Settings& settings, const Rulebook& rules,
                                                           const AuthorizedKeys& authorized, const std::string& name);

// Reads the file of `capacity.graph_file` if the graph is to come from there, and fails with what is wrong with it.
// What it says is held against `capacity.members`; without them its own names are taken for the members.
Result<void> CheckGraphFile(const Settings& settings);

}    // namespace dthrottle
