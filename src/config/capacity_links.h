// The graph over which hosts divide a capacity, from links that name hosts.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "capacity/graph.h"

namespace dthrottle {

// A node is the place of a name in `members`. Fails unless every member has a link, none more than the exchange allows,
// and all reach each other. REQUIRES: the members are in their order, each once, and no link is there twice.
Result<Graph> GraphOfMembers(std::vector<WeightedLink> links, const std::vector<std::string>& members);

// The same from the texts of capacity.links, which may be wrong in every way but their form. Fails with a sentence that
// names the hosts. REQUIRES: each text is one that ParseCapacityLink reads.
Result<Graph> GraphOfLinks(const std::vector<std::string>& links, const std::vector<std::string>& members);

}    // namespace dthrottle
