#include "share/check.h"

#include <fmt/format.h>

#include "share/ways.h"

namespace dthrottle {

bool KnowsShare(Share share) {
  return share == Share::kLocal || Ways::Knows(share);
}

bool KnowsQuotas() {
  return Ways::kCountsQuotas;
}

std::optional<Tokens> ExcessOf(Share share, const Rule& rule, const FleetTerms& fleet) {
  return Ways::Excess(share, rule, fleet);
}

std::vector<std::string> CheckShare(const Rule& rule, const FleetTerms& fleet) {
  std::vector<std::string> warnings;
  if (rule.share == Share::kLocal) {
    warnings.push_back(fmt::format(
        "share = \"local\" with {} hosts: each has burst = {} and rate = {} to itself, together {} and {}; if they are "
        "for all hosts, share = \"debit\" or \"forecast\" fits",
        fleet.hosts, rule.burst, rule.rate, fleet.hosts * rule.burst, fleet.hosts * rule.rate));
  }
  Ways::Check(rule, fleet, warnings);
  return warnings;
}

bool CapacityFits(const Rule& rule, const FleetTerms& fleet) {
  return rule.burst >= fleet.hosts && rule.rate >= fleet.hosts;
}

Tokens InAMinute(const Rule& rule) {
  return rule.burst + 60 * rule.rate;
}

void CheckTolerance(const Rule& rule, const FleetTerms& fleet, Tokens excess, const char* fits,
                    std::vector<std::string>& warnings) {
  const double percent = 100 * excess / InAMinute(rule);
  if (rule.tolerance == 0 || percent <= rule.tolerance) return;
  warnings.push_back(fmt::format(
      "tolerance = {} but {} hosts may serve {:.0f} beyond the {:.0f} of a minute, {:.0f} %: fewer hosts, a smaller "
      "burst{} {}{} fits",
      rule.tolerance, fleet.hosts, excess, InAMinute(rule), percent, CapacityFits(rule, fleet) ? "," : " or", fits,
      CapacityFits(rule, fleet) ? " or share = \"capacity\"" : ""));
}

}    // namespace dthrottle
