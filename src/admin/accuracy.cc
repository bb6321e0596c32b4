#include "admin/accuracy.h"

#include "share/ways.h"

namespace dthrottle {

std::vector<PeerAge> AgesOf(const std::vector<PeerStatus>& peers) {
  std::vector<PeerAge> ages;
  for (const PeerStatus& peer : peers) {
    const bool other = peer.state == PeerState::kUp || peer.state == PeerState::kSilent;
    if (other && peer.last_heard >= Duration::zero()) ages.push_back({peer.last_heard, peer.age});
  }
  return ages;
}

std::optional<Tokens> BoundOf(const Limiter& limiter, LimitIndex index, const std::vector<PeerAge>& peers) {
  const Limit& limit = limiter.rules().limit(index);
  return limiter.ways().With(limit, [&](const auto& way) { return way.Bound(limit, peers); });
}

}    // namespace dthrottle
