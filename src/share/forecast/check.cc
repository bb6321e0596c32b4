#include "share/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "share/forecast/forecasting.h"

namespace dthrottle {

namespace {

// No host may leave the others behind by more than half of a burst, so a small one takes many entries.
void CheckEntries(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  const double period = Seconds(fleet.period), usual = 1 / period, by_chance = 2 * usual;
  const double root_hosts = std::sqrt(fleet.hosts);
  const Pace pace{rule.rate, rule.burst, UnheardMaxOf(rule.burst, root_hosts), root_hosts, period};
  if (pace.EntriesAtRate() <= std::hypot(usual, by_chance)) return;
  warnings.push_back(
      fmt::format("share = \"forecast\" with burst = {}, rate = {} and {} hosts: each sends some {:.2g} entries a second of "
                  "a tag that is asked for at its rate, where {:.2g} is usual; a burst of {:.0f} fits",
                  rule.burst, rule.rate, fleet.hosts, pace.EntriesAtRate(), usual,
                  BurstOfEntries(pace.part(), by_chance)));
}

}    // namespace

// No peer serves more than U that others have not heard of.
std::optional<Tokens> Forecasting::Excess(const Rule& rule, const FleetTerms& fleet) {
  return (fleet.hosts - 1) * rule.max_unheard.value_or(UnheardMaxOf(rule.burst, std::sqrt(fleet.hosts)));
}

void Forecasting::Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  constexpr double kPeriodFits = 10;    // s
  CheckTolerance(rule, fleet, *Excess(rule, fleet), "a smaller max_unheard", warnings);
  if (const double period = Seconds(fleet.period); period > kPeriodFits) {
    warnings.push_back(fmt::format(
        "share = \"forecast\" with a report every {} s: the demand of a host that is gone is believed for {} s; a "
        "peers.period of 1s to 10s fits",
        period, kBelievedPeriods * period));
  }
  const double root_hosts = std::sqrt(fleet.hosts), fits = BurstOfUnheardMin(root_hosts);
  CheckEntries(rule, fleet, warnings);
  const Tokens each = std::min(UnheardMaxOf(rule.burst, root_hosts), rule.burst);
  if (rule.burst < fits && fleet.hosts * each > 2 * rule.burst && !rule.max_unheard.has_value()) {
    warnings.push_back(fmt::format(
        "share = \"forecast\" with burst = {} and {} hosts: each serves {} before the others know, {} at once; a burst "
        "of {:.0f} fits, or max_unheard = 1",
        rule.burst, fleet.hosts, each, fleet.hosts * each, std::ceil(fits)));
  }
}

}    // namespace dthrottle
