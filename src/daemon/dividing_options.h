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

}    // namespace dthrottle
