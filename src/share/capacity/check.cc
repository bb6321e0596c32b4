#include "share/check.h"

#include <fmt/format.h>

#include "share/capacity/division.h"

namespace dthrottle {

// No host's part of the burst is less than a token. Below a few tokens a second for each host, parts refuse much that
// the limit has room for.
void Division::Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings) {
  const double hosts = fleet.hosts;
  if (rule.burst < hosts) {
    warnings.push_back(
        fmt::format("burst = {} among {} hosts is less than a token for each: as none holds less than one, {} can be "
                    "served at once; raise burst, or share = \"debit\"",
                    rule.burst, hosts, hosts));
  } else if (rule.rate < hosts) {
    warnings.push_back(fmt::format("share = \"capacity\" with rate = {} and {} hosts: each begins with {:.3g} tokens a "
                                   "second, less than one, and refuses what others have room for; share = \"forecast\" "
                                   "fits",
                                   rule.rate, hosts, rule.rate / hosts));
  }
  if (rule.in_flight > 0 && rule.in_flight < hosts) {
    warnings.push_back(
        fmt::format("in_flight = {} among {} hosts is less than a place for each: under share = \"capacity\" hosts "
                    "take turns of some rounds of capacity.interval with them; raise in_flight, or share = "
                    "\"debit\" or \"forecast\"",
                    rule.in_flight, hosts));
  }
}

}    // namespace dthrottle
