// The limiter's half of dividing limits among hosts (share = "capacity"): finds the tags whose part is too small,
// measures how much is asked for them, and puts the parts in force that hosts agree on. In slices of some 50 us. The
// other half, which knows hosts and capacity, is capacity/ in the peer thread; two rings lie between.
//
// A tag takes part once a query on it was refused, here or at another host; until then this host has the usual part of
// it, and it costs nothing. Demand is what is asked for, served or not, as a low-pass over some rounds.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/spsc_ring.h"
#include "base/time.h"
#include "capacity/capacity_exchange.h"
#include "capacity/demand.h"
#include "share/capacity/division.h"
#include "share/capacity/lease_part.h"

namespace dthrottle {

// What the limiter hands over: how much is asked for tags that take part.
using ToCapacity = std::vector<TagDemand>;

// What the limiter gets: what changed. The standing comes into force before the shares.
struct FromCapacity {
  std::optional<CapacityStanding> standing;
  std::vector<TagShare> shares;
};

using ToCapacityRing = SpscRing<ToCapacity>;
using FromCapacityRing = SpscRing<FromCapacity>;

// Both, and what the thread of the exchange does with them.
struct DividingRings {
  explicit DividingRings(std::size_t items) : to_capacity(items), from_capacity(items) {}

  // Takes what was measured, lets the exchange do what is due, and hands over what has changed. Without an exchange
  // what was measured is dropped. Returns when to call again, unless a message comes.
  BootInstant Turn(CapacityExchange* exchange, BootInstant now);

  // The same when the exchange says no more to anybody: only moves what was measured and what has changed.
  void Drain(CapacityExchange& exchange);

  ToCapacityRing to_capacity;
  FromCapacityRing from_capacity;
  CapacityStanding told;    // to the limiter

 private:
  void Measured(CapacityExchange* exchange);
  void Tell(CapacityExchange& exchange);
};

class Dividing {
 public:
  // A tag that takes part.
  struct Participant {
    std::string tag;    // as in Tag; known once it was asked for here
    bool is_digest = false;
    std::string rule;
    double capacity = 0;    // the limit's rate for all hosts, tokens/s; 0: not known
    DemandEstimate demand{1};
    double told = 0;               // demand, as the other half knows it
    std::uint64_t arrivals = 0;    // counted until then
    Instant counted_at;

    // What the application reported, and when, for the indicator "reported".
    double reported = 0;
    Instant reported_at{};

    // Where leases are granted out of it, in parts of the whole: what of them is wanted, and what is pinned for them.
    double lease_wants = 0;
    Parts pinned = 0;
    std::uint32_t pin = 0, pin_told = 0;    // number of what is pinned, and the one the other half knows
    BootInstant pinned_until{};             // no lease is out after it
    Parts confirmed = 0;                    // of pinned, by the other half: it gives that to nobody
    Parts share = kWhole;                   // this host's where neighbours wait for some of it, less that

    static void Fields(auto& state, auto& self) {
      state(self.tag, self.is_digest, self.rule, self.capacity, self.demand, self.told, self.lease_wants, self.pinned,
            self.pin, self.pin_told, self.pinned_until, self.confirmed, self.share, self.reported, self.reported_at);
    }
  };

  // What the next program or start goes on with: parts in force, and who takes part.
  struct Kept {
    CapacityStanding standing;
    std::uint64_t rules = 0;    // fingerprint
    std::uint32_t pins = 0;
    std::map<CapacityKey, Participant> participants;
    std::map<CapacityKey, double> parts;    // of those that have one of their own

    static void Fields(auto& state, auto& self) {
      state(self.standing, self.rules, self.pins, self.participants, self.parts);
    }
    // The limiter has these parts from now on, until an exchange says others or their lease is over.
    void PutInForce(Division& division, std::size_t tags_max) const;
  };
  static constexpr std::uint32_t kKeptVersion = 3;    // for ReadState
  Kept Keep();

  // All arguments must outlive it.
  Dividing(Division& division, ToCapacityRing& to_capacity, FromCapacityRing& from_capacity, std::size_t tags_max,
           Duration interval, Instant now);
  // Goes on where another one has ended.
  void Resume(Kept kept, Instant now);

  // The same as Sharing::Work and next.
  bool Work(Instant now);
  Instant next() const;

  // What may be leased out of this host's part of the tag. A part that is leased out is given to nobody before it has
  // come back: it is pinned, and only what the other half has confirmed to be pinned may be leased. To be called every
  // second or so as long as there are leases, and by nobody where the tag has no rule that divides, or one with places,
  // which are leased themselves: none.
  std::optional<LeasePart> Lease(std::string_view tag, const LeaseUse& use, Instant now);

  // Whether hosts go by what applications report and not by demand.
  void GoByReports(bool reports) { by_reports_ = reports; }
  // How the application does with this host's part of the tag: any number above 0 that falls with the part. It counts
  // for kReportLasts. Then it falls, by a factor of e each kReportFades: an application that is gone needs no part, and
  // the others get it. False where no rule divides the tag, or there is no room.
  bool Indicate(const Tag& tag, double value, Instant now);
  static constexpr Duration kReportLasts = std::chrono::seconds(10), kReportFades = std::chrono::seconds(1);
  static constexpr Duration kPlacesEvery = std::chrono::milliseconds(100);

  // The tags that take part, and how often one could not because there were tags_max.
  const std::map<CapacityKey, Participant>& participants() const { return participants_; }
  std::uint64_t crowded() const { return crowded_; }

 private:
  bool Apply();
  void Adopt(const CapacityStanding& standing);
  Participant* Join(const CapacityKey& key, Instant now);
  void TakeNotes(Instant now);
  void Hear(const TagShare& share);
  void FollowRules();
  bool Measure(Instant now);
  std::optional<LeasePart> LeaseUnder(LimitIndex limit, std::string_view tag, const LeaseUse& use, Instant now);
  void LeasePlaces(Instant now);
  void LeasePlaces(const PlaceParts::Use& use, LimitIndex index, Instant now);
  double Asked(const Participant& participant, Instant now) const;

  Division& division_;
  ToCapacityRing& to_capacity_;
  FromCapacityRing& from_capacity_;
  const std::size_t tags_max_;
  const Duration interval_;
  const double alpha_;
  Instant next_;
  std::uint64_t rules_;         // fingerprint
  std::uint64_t serial_ = 0;    // of the standing in force
  CapacityStanding standing_;
  std::map<CapacityKey, Participant> participants_;
  std::uint64_t crowded_ = 0;
  std::uint32_t pins_ = 0;    // numbers given
  Instant places_at_{};
  bool by_reports_ = false;

  bool measuring_ = false;
  CapacityKey measured_;    // up to this one
  ToCapacity outgoing_;
  FromCapacity incoming_;
  std::size_t applied_ = 0;    // of incoming_.shares
  Instant now_;
};

}    // namespace dthrottle
