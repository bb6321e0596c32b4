// How far other sites are heard, by how their owners are (protocol/sites.md).
#pragma once

#include <cstddef>
#include <vector>

#include "bus/exchange.h"
#include "share/share.h"

namespace dthrottle {

struct SitePresence {
  bool some = false;     // one of its hosts is up
  bool whole = false;    // all of its owners are, so that nothing it serves is missed
  PeerAge age{};         // of the latest of those that are up
};

// How each of so many sites is heard, by number. A site has as many owners as those that are up say; an owner counts
// that is up and says that it is one, or has yet to report. Where none says so, all hosts count that were ever up.
std::vector<SitePresence> PresenceOf(const std::vector<PeerStatus>& peers, std::size_t sites);

}    // namespace dthrottle
