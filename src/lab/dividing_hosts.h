// What a fleet needs to know when hosts divide limits (share = "capacity"): members, neighbours, and how long it takes
// until they have begun.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "capacity/capacity_settings.h"
#include "config/settings.h"
#include "rule/rulebook.h"

namespace dthrottle::lab {

// None if no rule divides, or there is nobody to divide with. REQUIRES: the settings fit (below).
std::optional<CapacitySettings> CapacityOf(const Settings& settings, const Rulebook& rules, std::size_t hosts);

// Whether a fleet of so many hosts can have these settings of [capacity]; fails with a sentence for people.
Result<void> CheckCapacity(const Settings& settings, std::size_t hosts);
// What is simulated otherwise than it says there, a sentence for people; empty: nothing.
std::string CapacityNote(const Settings& settings);

// What hosts do badly with the rules that they divide, a sentence each, as settings with addresses in [peers] have it
// checked (config/sections/capacity.cc).
std::vector<std::string> PartWarnings(const Settings& settings, std::size_t hosts);

// From the start until every host knows the others, where all are connected from the beginning.
Duration TimeToMeet(const Settings& settings, bool divides);

}    // namespace dthrottle::lab
