#include "share/check.h"

#include <fmt/format.h>

#include <string_view>

#include "share/debit/debits.h"

namespace dthrottle {

// Each peer may serve a burst, and the rate until it is heard.
std::optional<Tokens> Debits::Excess(const Rule& rule, const FleetTerms& fleet) {
  return (fleet.hosts - 1) * ExcessOfPeer({rule.burst, rule.rate, std::nullopt, fleet.period}, {});
}

// Until hosts have heard of each other all that each could serve alone, the limit does not hold; then the client waits
// as long.
void Debits::Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  const Tokens excess = *Excess(rule, fleet);
  CheckTolerance(rule, fleet, excess, "share = \"forecast\"", warnings);
  if (excess <= InAMinute(rule)) return;
  const auto foretold = ExcessOf(Share::kForecast, rule, fleet);
  const std::string_view fits = foretold && 2 * *foretold < excess                        ? "share = \"forecast\""
                                : rule.burst >= fleet.hosts && rule.rate >= fleet.hosts ? "share = \"capacity\""
                                                                                        : "a shorter period or a "
                                                                                          "smaller burst";
  warnings.push_back(fmt::format(
      "share = \"debit\" with {} hosts: they may serve {:.0f} beyond the limit, {} x (burst + rate x peers.period), "
      "before all know, where it allows {:.0f} in a minute; {} fits",
      fleet.hosts, excess, fleet.hosts - 1, InAMinute(rule), fits));
}

}    // namespace dthrottle
