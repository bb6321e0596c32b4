// What this host tells everybody: hits of its limiter as numbered reports, and a ring of the latest for peers that missed
// some.
#pragma once

#include <optional>

#include "report/exchange_core.h"
#include "report/frame_ring.h"
#include "report/peer.h"

namespace dthrottle {

class Publishing {
 public:
  explicit Publishing(ExchangeCore& core) : core_(core), ring_(core.options.ring_bytes) {}

  // REQUIRES: item.kind is kHits, kUrgent or kPeriodEnd.
  void FromLimiter(ToPeers& item);

  // Publishes hits that wait for the end of their period.
  void Flush() {
    if (hits_) PublishHits(false);
  }

  // The request to repeat that has come.
  void OnRepeat(const Route& route, Peer& peer, Instant now);

  const FrameRing& ring() const { return ring_; }

 private:
  void Publish(ToPeers& item, bool last);
  void PublishHits(bool last);

  ExchangeCore& core_;
  FrameRing ring_;
  std::optional<ToPeers> hits_;    // the latest of the period, which may turn out to be its last
};

}    // namespace dthrottle
