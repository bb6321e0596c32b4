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

  bool Take(Instant now) {
    left_ = std::min(burst_, left_ + rate_ * Seconds(std::max(now - at_, Duration(0))));
    at_ = now;
    if (left_ < 1) return false;
    left_ -= 1;
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

  std::string name;
  std::uint32_t number = 0;    // no other peer has it now
  Link* link = nullptr;
  Duration period = kPeriodMin;
  ClockOffset clock;

  std::uint64_t incarnation = 0;
  std::optional<Heard> heard;               // in that incarnation; none: not known where to start
  std::uint64_t welcome_incarnation = 0;    // of its latest welcome; 0: none
  std::uint64_t welcome_sequence = 0;       // published when it said so first
  std::uint64_t published = 0;              // the greatest sequence that it has shown itself, in that incarnation
  bool has_all = false;                     // of that, still

  // What the donor of a snapshot says to have heard of it. Not to be relied on: once `claim_checked` has passed, what
  // the peer says itself goes first.
  struct Claim {
    std::uint64_t incarnation, next;

    static void Fields(auto& state, auto& self) { state(self.incarnation, self.next); }
  };
  std::optional<Claim> claim;
  Instant claim_checked = Instant::max();

  Instant alive{};       // when a report or the first welcome came
  Instant next_ask{};    // to repeat

  bool owes_snapshot = false;    // what it published was lost
  Instant next_snapshot{};

  Allowance repeats{4, 16}, snapshots{0.1, 3};    // of its requests. A snapshot may fail twice at once

  // Without its link, which comes anew.
  static void Fields(auto& state, auto& self) {
    state(self.name, self.number, self.period, self.clock, self.incarnation, self.heard, self.welcome_incarnation,
          self.welcome_sequence, self.published, self.has_all, self.claim, self.claim_checked, self.alive,
          self.owes_snapshot, self.next_snapshot);
    state.Check(self.period >= kPeriodMin && self.period <= kPeriodMax);
  }

  Instant silent_at() const { return alive + kSilentPeriods * period; }
  // After so long without a report there is reason to say hello: the subscription may have ended with its connection.
  Instant quiet_at() const { return alive + std::max<Duration>(period * 3 / 2, std::chrono::seconds(1)); }

  // Follows a life of the peer from where a snapshot says, or from `otherwise`.
  void Follow(std::uint64_t life, std::uint64_t otherwise, Instant now) {
    const bool claimed = claim && claim->incarnation == life;
    incarnation = life;
    heard.emplace(claimed ? claim->next : otherwise);
    claim_checked = claimed ? now + std::max<Duration>(2 * period, std::chrono::seconds(1)) : Instant::max();
  }
  // True once the snapshot's claim goes beyond anything that the peer has published.
  bool claim_is_false(Instant now) const {
    return now >= claim_checked && incarnation == welcome_incarnation && heard->next() > published + 1;
  }
  void SetPeriod(Duration said) { period = std::clamp(said, kPeriodMin, kPeriodMax); }
};

}    // namespace dthrottle
