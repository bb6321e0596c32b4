// What this host tells everybody: hits of its limiter as numbered reports, to each connection by which a hello came,
// and a ring of the latest for peers that missed some.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "report/exchange_core.h"
#include "report/frame_ring.h"
#include "report/peer.h"

namespace dthrottle {

class Publishing {
 public:
  explicit Publishing(ExchangeCore& core) : core_(core), ring_(core.options.ring_bytes) {}

  // REQUIRES: item.kind is kHits, kUrgent or kPeriodEnd.
  void FromLimiter(ToPeers& item, Instant now);

  // Publishes hits that wait for the end of their period.
  void Flush(Instant now) {
    if (hits_) PublishHits(false, now);
  }

  // Reports go to `route` from now on. Hellos keep a subscription alive; a name has few, of which the newest stay.
  void Subscribe(const Route& route, const std::string& name, Instant now);
  std::size_t subscribers() const { return subscribers_.size(); }

  // The request to repeat that has come.
  void OnRepeat(const Route& route, Peer& peer, Instant now);

  const FrameRing& ring() const { return ring_; }

  // Over a restart. REQUIRES: Flush() has been called.
  static void Fields(auto& state, auto& self) { state(self.ring_); }

 private:
  struct Subscriber {
    std::string name;
    Instant hello;
  };

  void Publish(ToPeers& item, bool last, Instant now);
  void PublishHits(bool last, Instant now);

  ExchangeCore& core_;
  FrameRing ring_;
  std::map<Route, Subscriber> subscribers_;
  std::optional<ToPeers> hits_;    // the latest of the period, which may turn out to be its last
};

}    // namespace dthrottle
