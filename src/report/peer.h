// What an exchange knows of other hosts: the links that the settings name, and the hosts behind them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"
#include "report/clock_offset.h"
#include "report/exchange.h"
#include "report/heard.h"

namespace dthrottle {

// How often somebody may ask for something.
class Allowance {
 public:
  // `rate` a second, and `burst` at once.
  Allowance(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}

  bool Take(Instant now, double much = 1) {
    left_ = std::min(burst_, left_ + rate_ * Seconds(std::max(now - at_, Duration(0))));
    at_ = now;
    if (left_ < much) return false;
    left_ -= much;
    return true;
  }

 private:
  double rate_, burst_;
  double left_;
  Instant at_{};
};

struct Peer;

// One configured address.
struct Link {
  PeerStatus status;          // kept up to date but for what depends on the time, and on the peer
  Peer* peer = nullptr;       // set exactly when welcomed
  std::string proven;         // name that the connection proves; empty: none
  bool awaiting = false;      // a hello has not been answered
  bool hastened = false;      // the next hello does not wait for its turn
  std::uint64_t hello = 0;    // number of the latest, which its answer repeats
  Instant hello_sent{};
  Duration jitter{};             // of the next hello
  std::uint64_t sequence = 0;    // published when it welcomed us
  Instant last_report{};
};

// A host by its name. It outlives its link, so a host that moves to another address stays the same host. Hosts that
// only a snapshot has named are kept in the same way.
struct Peer {
  static constexpr Duration kPeriodMin = std::chrono::milliseconds(10), kPeriodMax = std::chrono::hours(1);
  static constexpr int kSilentPeriods = 3;
  static constexpr Duration kSlack = std::chrono::milliseconds(20);    // of clocks

  std::string name;
  std::uint32_t number = 0;    // no other peer has it now
  Link* link = nullptr;
  Duration period = kPeriodMin;
  ClockOffset clock;

  std::uint64_t incarnation = 0;
  std::optional<Heard> heard;               // in that incarnation; none: not known where to start
  std::uint64_t welcome_incarnation = 0;    // of its latest welcome; 0: none
  std::uint64_t welcome_sequence = 0;       // published when it said so first
  bool has_all = false;                     // of that, still

  // What the donor of a snapshot says to have heard of it, until the peer itself has shown that it is so, or is not.
  struct Claim {
    std::uint64_t incarnation, next;
    Instant at;    // when the snapshot was complete

    static void Fields(auto& state, auto& self) { state(self.incarnation, self.next, self.at); }
  };
  std::optional<Claim> claim;

  Instant alive{};       // when a report or the first welcome came
  Instant next_ask{};    // to repeat

  bool owes_snapshot = false;    // what it published was lost
  Instant next_snapshot{};

  Allowance repeats{4, 16}, snapshots{0.1, 3};    // of its requests. A snapshot may fail twice at once
  std::optional<Allowance> entries;               // of its reports

  // Without its link, which comes anew, and without allowances, which begin full.
  static void Fields(auto& state, auto& self) {
    state(self.name, self.number, self.period, self.clock, self.incarnation, self.heard, self.welcome_incarnation,
          self.welcome_sequence, self.has_all, self.claim, self.alive, self.owes_snapshot, self.next_snapshot);
    state.Check(self.period >= kPeriodMin && self.period <= kPeriodMax);
  }

  Instant silent_at() const { return alive + kSilentPeriods * period; }
  // After so long without a report there is reason to say hello: the subscription may have ended with its connection.
  Instant quiet_at() const { return alive + std::max<Duration>(period * 3 / 2, std::chrono::seconds(1)); }

  // Follows a life of the peer from where a snapshot says, or from `otherwise`.
  void Follow(std::uint64_t life, std::uint64_t otherwise) {
    const bool claimed = claim && claim->incarnation == life;
    incarnation = life;
    heard.emplace(claimed ? claim->next : otherwise);
  }

  // A frame that was published after the snapshot was complete cannot be in it.
  bool refutes_claim(std::uint64_t sequence, Instant published_at) const {
    return claim && claim->incarnation == incarnation && sequence < heard->next() && published_at - kSlack > claim->at;
  }
  void SetPeriod(Duration said) { period = std::clamp(said, kPeriodMin, kPeriodMax); }
};

}    // namespace dthrottle
