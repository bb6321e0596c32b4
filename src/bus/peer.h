// What an exchange knows of other hosts: the links that the settings name, and the hosts behind them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/allowance.h"
#include "base/report_place.h"
#include "base/state.h"
#include "base/time.h"
#include "bus/audit.h"
#include "bus/clock_offset.h"
#include "bus/exchange.h"
#include "bus/heard.h"
#include "bus/peer_ceilings.h"

namespace dthrottle {

// What this host has published.
struct Published {
  std::uint64_t sequence = 0;    // of the last frame
  std::uint64_t low = 1;         // the oldest that can be sent again
  std::uint64_t hits = 0;        // in this life
  Told before;                   // by the lives before
  std::uint64_t epoch = 0;       // of the owners by which it was cut
};

struct Peer;

// One configured address. What is looked at again and again comes first: there may be a thousand.
struct Link {
  Peer* peer = nullptr;       // set exactly when welcomed
  bool awaiting = false;      // a hello has not been answered
  bool hastened = false;      // the next hello does not wait for its turn
  std::uint64_t hello = 0;    // number of the latest, which its answer repeats; hellos until then have the same
  Instant hello_sent{};
  Duration jitter{};    // of the next hello
  Instant last_report{};
  std::optional<Allowance> frames;    // of what comes by it
  PeerStatus status;                  // kept up to date but for what depends on the time, and on the peer
  std::string proven;                 // name that the connection proves; empty: none
  std::uint64_t sequence = 0;         // published when it welcomed us
};

// A host by its name. It outlives its link, so a host that moves to another address stays the same host. Hosts that
// only a snapshot has named are kept in the same way. What every report needs comes first.
struct Peer {
  // What its reports may still say.
  struct Room {
    Allowance entries, hits;
    std::uint64_t asked_max;    // frames in one request to repeat
    bool above = false;         // something was left for later since the last one
  };

  // What the donor of a snapshot says to have heard of it, until the peer itself has shown that it is so, or is not.
  struct Claim {
    std::uint64_t incarnation, next;
    Instant at;    // when the snapshot was complete

    static void Fields(auto& state, auto& self) { state(self.incarnation, self.next, self.at); }
  };

  static constexpr Duration kPeriodMin = std::chrono::milliseconds(10), kPeriodMax = std::chrono::hours(1);
  static constexpr int kSilentPeriods = 3;
  static constexpr Duration kSlack = std::chrono::milliseconds(20);    // of clocks
  static constexpr Duration kCatchUpMin = std::chrono::seconds(20);    // a link is dialed again within 15
  static constexpr Duration kCatchUpLook = std::chrono::milliseconds(100);

  // What every report needs comes first (links.h).
  Link* link = nullptr;
  Duration period = kPeriodMin;
  Instant alive{};                 // when a report or the first welcome came
  Instant heard_to{};              // end of the latest interval of which a report has come, by our clock
  Audit audit;                     // of the life that is followed
  std::optional<Heard> heard;      // in that incarnation; none: not known where to start
  std::uint64_t incarnation = 0;
  std::uint64_t heard_epoch = 0;    // of the owners by which the reports that are heard were cut
  std::uint32_t number = 0;        // no other peer has it now
  ClockOffset clock;
  std::optional<Claim> claim;
  std::optional<Room> room;    // none: nothing has been said yet
  std::string name;

  std::uint64_t welcome_incarnation = 0;    // of its latest welcome; 0: none
  std::uint64_t welcome_sequence = 0;       // published when it said so first
  std::uint64_t welcome_hits = 0;           // in that
  Told welcome_told;                        // by the lives before
  std::uint64_t welcome_low = 0;            // the oldest of that which it kept then
  std::uint64_t welcome_epoch = 0;          // of the owners by which its reports to this host were cut then

  std::uint64_t came = 0;    // the life of which the limiter has been told that it came, where this host owns tags

  Instant next_ask{};    // to repeat

  bool owes_snapshot = false;    // what it published was lost, or this host does not know the levels of what it owns
  bool levels_count = true;      // of a snapshot; false: its frames say all, and it is for what they do not
  Instant next_snapshot{};
  Instant catch_up_until{};    // until when a snapshot that makes up for losses waits for what can still be heard
  int snapshots_failed = 0;    // one after the other, of those that an owner has asked for

  std::uint64_t settled_epoch = 0;                // of the owners whose change it has done its part of,
  Instant settled_at{};                           // as it said then
  Allowance lists{2, 4};                          // of owners, in answer to frames that were cut by another list
  Allowance repeats{4, 16}, snapshots{0.1, 4};    // of its requests. A snapshot may fail three times at once

  // Without its link, which comes anew, and without allowances, which begin full.
  static void Fields(auto& state, auto& self) {
    bool owes_levels = self.owes_snapshot && self.levels_count;
    state(self.name, self.number, self.period, self.clock, self.incarnation, self.heard, self.welcome_incarnation,
          self.welcome_sequence, self.welcome_hits, self.welcome_told, self.audit, self.welcome_low, self.claim,
          self.alive, owes_levels, self.next_snapshot, self.heard_epoch, self.welcome_epoch);
    if constexpr (kIsReading<decltype(state)>) self.owes_snapshot = owes_levels;
    state.Check(self.period >= kPeriodMin && self.period <= kPeriodMax);
  }

  // This host does not know the levels of what it owns, and that one is to say them.
  void AskForLevels() {
    owes_snapshot = levels_count = true;
    next_snapshot = catch_up_until = {};
  }
  // Some of what it published is gone for good. A snapshot contains what is still under way as well, which would be
  // charged again when it comes.
  void OweSnapshot(Instant now) {
    const Duration longest = std::max<Duration>(kCatchUpMin, 2 * period);
    if (!owes_snapshot || !levels_count) catch_up_until = std::max(now, next_snapshot) + longest;
    owes_snapshot = levels_count = true;
  }

  Instant silent_at() const { return alive + kSilentPeriods * period; }
  // After so long without a report there is reason to say hello: the subscription may have ended with its connection.
  Instant quiet_at() const { return alive + Quiet(); }
  // Whether something that it has published is still to come, as far as its reports tell.
  bool behind(Instant now) const { return heard && (!heard->missing().empty() || heard_to + Quiet() < now); }

  // Follows a life of the peer from where a snapshot says, or from `otherwise`.
  void Follow(std::uint64_t life, std::uint64_t otherwise) {
    const bool claimed = claim && claim->incarnation == life;
    const std::uint64_t next = claimed ? claim->next : otherwise;
    incarnation = life;
    heard.emplace(next);
    std::optional<std::uint64_t> hits;
    if (next == 1) hits = 0;
    if (next == welcome_sequence + 1) hits = welcome_hits;
    audit.Begin(welcome_told, next, hits);
  }

  // A frame that was published after the snapshot was complete cannot be in it.
  bool refutes_claim(std::uint64_t sequence, Instant published_at) const {
    return claim && claim->incarnation == incarnation && sequence < heard->next() && published_at - kSlack > claim->at;
  }
  // A frame that has come. REQUIRES: it is of the stream that is heard.
  ReportPlace PlaceOf(std::uint64_t sequence) const {
    const std::uint64_t missing = heard->missing().empty() ? sequence : heard->missing().front().first;
    return {incarnation ^ heard_epoch, sequence, missing < sequence ? missing : 0};
  }
  void SetPeriod(Duration said) { period = std::clamp(said, kPeriodMin, kPeriodMax); }

 private:
  Duration Quiet() const { return std::max<Duration>(period * 3 / 2, std::chrono::seconds(1)); }
};

}    // namespace dthrottle
