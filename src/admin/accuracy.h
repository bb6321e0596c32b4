// The certificate of accuracy of each rule: what theory allows, what has been seen (share/accuracy/certificate.h).
#pragma once

#include <optional>
#include <vector>

#include "bus/exchange.h"
#include "limiter/limiter.h"
#include "share/accuracy/certificate.h"

namespace dthrottle {

// How late the other hosts are that have been heard.
std::vector<PeerAge> AgesOf(const std::vector<PeerStatus>& peers);

// The most that hosts together serve of a tag above burst + rate x time; none if there is no bound, which is so where
// each host limits alone.
std::optional<Tokens> BoundOf(const Limiter& limiter, LimitIndex limit, const std::vector<PeerAge>& peers);

}    // namespace dthrottle
