// Reports of peers: each is passed on to the limiter once, by this host's clock; what is missing is asked for. While
// this host joins they are held back. A peer that says more than its ceilings allow is heard later, and nobody else is.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "base/state.h"
#include "bus/exchange_core.h"
#include "bus/joining.h"
#include "bus/membership.h"

namespace dthrottle {

class Hearing {
 public:
  Hearing(ExchangeCore& core, Membership& members, Joining& joining)
      : core_(core), members_(members), joining_(joining) {}

  // The report that has come, on the link of the peer that it is from.
  void OnReport(Peer& peer, std::string_view frame, Instant now);
  // The welcome that has come says how much this host should have heard.
  void OnWelcome(Peer& peer);
  // The sender no longer has some of what was asked for.
  void OnGone(Peer& peer, Instant now);

  // Takes what was held back, as far as the limiter has room.
  void Release();
  bool releasing() const { return !joining_.joining() && !core_.awaits_tags && !held_.empty(); }

  // Asks for what is missing if it is time. Returns when to look again.
  Instant AskToRepeat(Peer& peer, Instant now);

  // Over a restart.
  static void Fields(auto& state, auto& self) {
    state(self.held_);
    if constexpr (kIsReading<decltype(state)>) {
      for (const Held& held : self.held_) self.held_bytes_ += held.bytes.size();
    }
  }

 private:
  struct Held {
    std::string bytes;
    Instant arrival;

    static void Fields(auto& state, auto& self) { state(self.bytes, self.arrival); }
  };

  void Hold(std::string_view frame, Instant now);
  bool AboveCeiling(Peer& peer, Instant now);
  std::uint64_t AskedNow(Peer& peer, Instant now);
  bool IsOfOurOwners(Peer& peer, Instant now);
  void Take(Peer& peer, std::size_t bytes, Instant now);
  bool TakeIncarnation(Peer& peer);
  void GiveToLimiter(const Peer& peer, Instant from, Instant to);
  void CountDuplicate(Peer& peer);
  void CountLost(Peer& peer, std::uint64_t frames, std::uint64_t hits = 0);

  ExchangeCore& core_;
  Membership& members_;
  Joining& joining_;
  std::deque<Held> held_;
  std::size_t held_bytes_ = 0;
};

}    // namespace dthrottle
