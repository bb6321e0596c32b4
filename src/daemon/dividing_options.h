// What the exchange of capacity needs to know, from the settings, the rules and the keys.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "io/keys.h"
#include "io/part.h"
#include "io/peer_thread.h"
#include "rule/rulebook.h"

namespace dthrottle {

// None if no rule divides its limit. Fails with a sentence for people, which names the setting: EX_CONFIG if that is
// wrong, EX_UNAVAILABLE if its file cannot be used.
tl::expected<std::optional<CapacityOptions>, StartFailure> MakeCapacityOptions(const Settings& settings,
                                                                               const Rulebook& rules,
                                                                               const AuthorizedKeys& authorized,
                                                                               const std::string& name);

// Whether a start would have a graph, as far as files say who the members are: [capacity], or the keys that are
// authorized. Fails as MakeCapacityOptions does.
Result<void> CheckDividing(const Settings& settings);

}    // namespace dthrottle
