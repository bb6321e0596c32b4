#include "admin/accuracy.h"

#include <algorithm>

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
  const BoundTerms terms = limiter.BoundTermsOf(limit);
  if (limit.shared) return ExcessBound(terms, peers);
  // Parts of a rate sum to the rate, but no host's part of the burst is less than a token.
  if (limit.divided) return std::max(static_cast<double>(peers.size() + 1) - terms.burst, 0.0);
  return peers.empty() ? std::optional(0.0) : std::nullopt;
}

}    // namespace dthrottle
