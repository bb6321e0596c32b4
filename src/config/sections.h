// The sections of the settings file, a file of sections/ each: name, default, bounds, text and whether a reload changes
// it stand there once for each key. The keys of [[rule]], [[override]] and [[resource]] are there too.
#pragma once

#include "config/keys.h"

namespace dthrottle {

Section QuerySection();
Section AdminSection();
Section TableSection();
Section PeersSection();
Section SitesSection();
Section CapacitySection();
Section ShedSection();
Section RespSection();
Section AskSection();
Section HoldSection();
Section QuotaSection();
Section SpopSection();
Section PageSection();
Section EnvoySection();
Section LeaseSection();
Section TlsSection();
Section OperatorSection();
Section ProcessSection();

// Reads the files that rules name, with `read`, and gives rules that have networks and no match one that every tag fits.
class Findings;
void TakeNetworks(std::vector<Rule>& rules, const FileReader& read, Findings& findings);

// What no key can know by itself: whether values that are right fit each other.
void CheckPeers(Findings& findings);
void CheckOwned(Findings& findings);    // rules, where a few hosts own all tags
void CheckSites(Findings& findings);
void CheckLease(Findings& findings);
void CheckTlsFiles(Findings& findings);
void CheckRules(Findings& findings);
void CheckReach(Findings& findings);    // rules that no tag finds
void CheckIdleKeys(Findings& findings);    // of rules, where another key makes them so
void CheckQuotas(Findings& findings);
void CheckAlso(Findings& findings);
void CheckShares(Findings& findings);
void CheckOverrides(Findings& findings);
void CheckShed(Findings& findings);
void CheckCapacity(Findings& findings);
void CheckResources(Findings& findings);

// Where hosts listen and call, and their keys, by the section that says so; `whom` another host could speak for.
struct HostSockets {
  std::string_view section, whom;
  const Endpoint& bind;
  const std::vector<std::string>& connect;
  const std::string &key_file, &authorized_keys;
};
void CheckHostKeys(Findings& findings, const HostSockets& sockets);

// Why the period between sites does not fit that within a site; empty: it does.
std::string ComplaintAboutSitePeriod(const Settings& settings);

// Hosts that share limits, as far as the addresses tell: this one may be among them or not.
double HostsOf(const Settings& settings);

// Warns of what the rule's way of sharing does badly with its numbers among so many hosts.
void WarnOfShare(Findings& findings, std::size_t rule, double hosts);

}    // namespace dthrottle
