// What this host tells everybody: hits of its limiter as numbered reports, to each connection by which a hello came,
// and a ring of the latest for peers that missed some.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bus/exchange_core.h"
#include "bus/frame_ring.h"
#include "bus/peer.h"

namespace dthrottle {

class Publishing {
 public:
  // `epoch`: of the owners by which what is published here is cut.
  explicit Publishing(ExchangeCore& core, std::uint64_t epoch = 0);

  // REQUIRES: item.kind is kHits, kUrgent or kPeriodEnd.
  void FromLimiter(ToPeers& item, Instant now);

  // Publishes hits that wait for the end of their period.
  void Flush(Instant now) {
    if (hits_) PublishHits(false, now);
  }

  // Reports go to `route` from now on. Hellos keep a subscription alive; a name has few, of which the newest stay.
  void Subscribe(const Route& route, const std::string& name, Instant now);
  std::size_t subscribers() const { return subscribers_.size(); }

  // The owner that hears this stream has counted all frames up to that one, so they are kept no longer. Returns until
  // when the hits in them were served; none: that frame has not been published.
  std::optional<Instant> Counted(std::uint64_t sequence);

  // Publishes hits that have been published elsewhere, where nobody counted them, as of the same interval.
  void PublishAgain(ToPeers& item, Instant now) { Publish(item, false, now); }

  struct Kept {
    FrameRing frames;
    std::uint64_t hits;    // in those that are not counted
  };
  // Another stream takes the place of this one, to the same subscribers; frames begin with 1 again. Returns those that
  // were kept, with the number of the first.
  Kept Reopen(std::uint64_t epoch);
  std::uint64_t epoch() const { return epoch_; }
  // Every frame has been counted.
  bool all_counted() const { return ring_.size() == 0 && !hits_; }
  // Subscribers of that name hear this stream from now on.
  void TakeSubscribers(Publishing& from, const std::string& name);

  // The request to repeat that has come.
  void OnRepeat(const Route& route, Peer& peer, Instant now);

  const FrameRing& ring() const { return ring_; }

  // What a welcome says of this host: how much this life has published, and the lives before.
  Published published() const { return {ring_.next() - 1, ring_.low(), hits_published_, told_before_, epoch_}; }

  // Over a restart. REQUIRES: Flush() has been called.
  static void Fields(auto& state, auto& self) {
    state(self.ring_, self.uncounted_, self.hits_published_, self.told_before_, self.epoch_);
  }

 private:
  struct Subscriber {
    Route route;
    std::string name;
    Instant hello;
  };

  // Ends the subscription that is the oldest of a name; of all if it is null.
  void EndOldest(const std::string* name);
  void Forget(const std::string& name);
  void Publish(ToPeers& item, bool last, Instant now);
  void PublishHits(bool last, Instant now);

  struct Uncounted {
    std::uint64_t sequence = 0, hits = 0;
    Instant to{};

    static void Fields(auto& state, auto& self) { state(self.sequence, self.hits, self.to); }
  };
  Uncounted TakeUncounted();    // the first, which is over

  ExchangeCore& core_;
  std::uint64_t epoch_;
  FrameRing ring_;
  std::deque<Uncounted> uncounted_;    // frames of a stream that an owner counts
  Instant counted_until_{};         // hits in frames that it has counted
  std::uint64_t hits_published_ = 0;
  Told told_before_;
  std::vector<Subscriber> subscribers_;    // by route: each frame goes through all of them
  std::unordered_map<std::string, std::size_t> of_name_;    // how many of them a name has; none is zero
  std::optional<ToPeers> hits_;    // the latest of the period, which may turn out to be its last
};

}    // namespace dthrottle
