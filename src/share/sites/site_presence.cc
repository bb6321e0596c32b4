#include "share/sites/site_presence.h"

#include <algorithm>
#include <cstdint>

namespace dthrottle {

std::vector<SitePresence> PresenceOf(const std::vector<PeerStatus>& peers, std::size_t sites) {
  struct OwnersSeen {
    std::uint64_t said = 0, up = 0, silent = 0;
  };
  std::vector<SitePresence> all(sites);
  std::vector<OwnersSeen> owners(sites);
  for (const PeerStatus& peer : peers) {
    if (!peer.number || *peer.number >= sites) continue;
    SitePresence& site = all[*peer.number];
    OwnersSeen& its = owners[*peer.number];
    its.silent += peer.state == PeerState::kSilent;
    if (peer.state != PeerState::kUp) continue;
    site.some = true;
    site.age = {std::max(site.age.heard_ago, peer.last_heard), std::max(site.age.delay, peer.age)};
    its.said = std::max(its.said, peer.parts);
    its.up += peer.parts != 0 || peer.reports == 0;
  }
  for (std::size_t i = 0; i < sites; ++i) {
    all[i].whole = all[i].some && (owners[i].said != 0 ? owners[i].up >= owners[i].said : owners[i].silent == 0);
  }
  return all;
}

}    // namespace dthrottle
