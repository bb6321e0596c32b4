#include "lab/owning_hosts.h"

#include "lab/host_transports.h"
#include "lab/network.h"

namespace dthrottle::lab {

std::uint32_t OwnersIn(const Settings& settings) {
  constexpr std::uint32_t kInEtcd = 3;
  const auto& peers = settings.peers;
  if (peers.spread != PeerSpread::kOwners) return 0;
  return peers.owners.empty() ? kInEtcd : static_cast<std::uint32_t>(peers.owners.size());
}

std::vector<std::string> FirstHosts(std::uint32_t count, std::uint32_t hosts, std::uint32_t sites) {
  std::vector<std::string> names;
  std::vector<std::uint32_t> taken(sites);
  for (std::uint32_t host = 0; host < hosts; ++host) {
    if (taken[SiteOf(host, hosts, sites)]++ < count) names.push_back(HostName(host));
  }
  return names;
}

}    // namespace dthrottle::lab
