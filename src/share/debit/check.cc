#include "share/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "share/debit/debits.h"

namespace dthrottle {

namespace {

// Where all hosts are asked for more than there is, a bucket comes to owe what the rate gives in up to two periods, or
// in one with two hosts. Simulated fleets of 2, 4 and 16 hosts exceed the limit for good with less; how much less
// depends on the phases of their reports.
void CheckDebt(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  const double periods = std::min(fleet.hosts - 1, 2.0);
  const Tokens least = periods * rule.rate * Seconds(fleet.period);
  if (!rule.max_debt.has_value() || *rule.max_debt >= least) return;
  warnings.push_back(fmt::format(
      "share = \"debit\" with max_debt = {} and {} hosts: they forget what others served beyond it, so that the limit "
      "does not hold where more is asked for; {:.0f}, which is {} x rate x peers.period, fits, or no max_debt",
      *rule.max_debt, fleet.hosts, std::ceil(least), periods));
}

}    // namespace

// Peers are heard in time, and at once.
std::optional<Tokens> Debits::Excess(const Rule& rule, const FleetTerms& fleet) {
  const std::vector<PeerAge> peers(static_cast<std::size_t>(fleet.hosts) - 1);
  return ExcessBound({rule.burst, rule.rate, std::nullopt, fleet.period}, peers);
}

// Until hosts have heard of each other all that each could serve alone, the limit does not hold; then the client waits
// as long.
void Debits::Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  CheckDebt(rule, fleet, warnings);
  const Tokens excess = *Excess(rule, fleet);
  CheckTolerance(rule, fleet, excess, "share = \"forecast\"", warnings);
  if (excess <= InAMinute(rule)) return;
  const auto foretold = ExcessOf(Share::kForecast, rule, fleet);
  const std::string_view fits = foretold && 2 * *foretold < excess ? "share = \"forecast\""
                                : CapacityFits(rule, fleet)       ? "share = \"capacity\""
                                                                  : "a shorter period or a smaller burst";
  warnings.push_back(fmt::format(
      "share = \"debit\" with {} hosts: they may serve {:.0f} beyond the limit, {} x (burst + rate x peers.period) + "
      "2 x rate x peers.period, before all know, where it allows {:.0f} in a minute; {} fits",
      fleet.hosts, excess, fleet.hosts - 1, InAMinute(rule), fits));
}

}    // namespace dthrottle
