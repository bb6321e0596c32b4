// What a settings file should hear of how its rules are shared, before they are in force. The numbers are those of the
// ways' own laws (Way::Excess, Way::Check).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "base/tokens.h"
#include "rule/rule.h"

namespace dthrottle {

// The hosts that share a rule, as far as settings tell.
struct FleetTerms {
  double hosts;
  Duration period;    // between reports
};

// Whether this program can share limits so, and count quotas.
bool KnowsShare(Share share);
bool KnowsQuotas();

// The most that the hosts of a fleet serve of a tag beyond burst + rate x time before all have heard of it, if limits
// were shared so; none if there is no bound or no such way.
std::optional<Tokens> ExcessOf(Share share, const Rule& rule, const FleetTerms& fleet);

// What this way of sharing does badly with the numbers of the rule, a sentence each. REQUIRES: the rule is not off.
std::vector<std::string> CheckShare(const Rule& rule, const FleetTerms& fleet);

// Whether a part of the burst and of the rate for each host is a token and more, as "capacity" needs it.
bool CapacityFits(const Rule& rule, const FleetTerms& fleet);

// For the ways: what a rule lets through in a minute, which is the time that a tolerance is for; and the warning if
// `excess` is more than the rule tolerates. `fits` says what would be better.
Tokens InAMinute(const Rule& rule);
void CheckTolerance(const Rule& rule, const FleetTerms& fleet, Tokens excess, const char* fits,
                    std::vector<std::string>& warnings);

}    // namespace dthrottle
