// What all parts of a capacity exchange work with: membership, the generation in force, this host's life in it, its
// bond with a best friend, its office as a witness, and the way to the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "capacity/ablation.h"
#include "capacity/capacity_exchange.h"
#include "capacity/capacity_message.h"
#include "capacity/exchange_members.h"
#include "capacity/witness.h"

namespace dthrottle {

inline constexpr int kLostSeatPatience = 3;         // in times that it takes to call a life over
inline constexpr int kRestLeases = 3;               // after a change of generation, what was taken for long is kept
inline constexpr std::size_t kRecordsFactor = 2;    // of tags_max: ledgers with inherited ones; records of a client

// The generation in force, and what was promised beyond it.
struct CapacityGeneration {
  std::uint64_t number = 0;                  // 0: none yet
  std::uint64_t acked = 0;                   // promised in this life; above `number` everything holds still
  std::uint64_t entitled_to = 0;             // the generation whose share nobody but this life of this host gets
  Parts base = 0;                            // an equal share less the reserve
  Parts reserve = 0, aside = 0;              // reserves of members that take part, of the others
  MemberBits participants;
  std::uint64_t former = 0;    // the latest that one of them was in before; 0: they have met for the first time
  BootInstant promised_at = BootInstant::min();                     // acked
  BootInstant kept_until = BootInstant::min(), rests_until = BootInstant::min();    // as in CapacityStanding

  bool joined() const { return number != 0; }
  bool frozen() const { return acked > number; }
  bool running() const { return joined() && !frozen(); }

  static void Fields(auto& state, auto& self) {
    state(self.number, self.acked, self.entitled_to, self.base, self.reserve, self.aside, self.participants,
          self.former, self.promised_at, self.kept_until, self.rests_until);
    state.Check(self.base <= kWhole && self.reserve <= kWhole && self.aside <= kWhole && self.number != 0);
  }
};

// This life of this host.
struct CapacityLife {
  std::uint64_t epoch = 0;
  MemberBits seats, secured;               // whose equal shares this host has of tags without a ledger; as logged
  BootInstant leased_until = BootInstant::min();
  BootInstant self_until = BootInstant::min();    // as far as this host is a witness itself
  std::uint64_t self_binding = 0;
  bool residue = false;    // something is lost that only a new generation brings back

  static void Fields(auto& state, auto& self) {
    state(self.epoch, self.seats, self.secured, self.leased_until, self.self_until, self.self_binding, self.residue);
  }
};

// An agreement with one life of another host to keep this host's log.
struct CapacityBond {
  CapacityPeer* friend_ = nullptr;
  std::uint64_t life = 0;      // of the friend
  std::uint64_t number = 0;    // 0: none
};

struct CapacityBonds {
  CapacityBond bond, candidate;    // with the friend whose log counts; with the one that is to be it
  bool complete = false;           // the candidate has every ledger

  bool changing() const { return candidate.number != 0; }
  const CapacityBond& LoggingTo() const { return changing() ? candidate : bond; }
  std::uint64_t NumberToSay() const { return changing() && complete ? candidate.number : bond.number; }
};

class CapacityCore {
 public:
  CapacityCore(const CapacityExchange::Options& options, CapacitySettings settings, CapacityTransport& transport,
               BootInstant now);

  // ---- Sending ----

  // An empty message of this host, to be filled in and sent. There is one at a time.
  CapacityMessage& Fresh(CapacityKind kind);
  void Send(std::string_view to) { Send(to, Encoded()); }
  void Send(std::string_view to, const std::string& bytes);
  // The bytes of the message, until the next one is encoded.
  const std::string& Encoded();
  void SendAll(const std::vector<std::string>& names);    // this host is left out
  void Acknowledge(const CapacityPeer& p, const CapacityMessage& m);
  void Save() { transport_.Save(Witness::Encode(witness.saved())); }

  // ---- What this host may use ----

  // The message is of the generation in force.
  bool IsOurs(const CapacityMessage& m) const { return generation.joined() && m.generation == generation.number; }
  bool Leased(BootInstant now) const { return generation.running() && now < life.leased_until; }
  // What this host has of a tag without a ledger, reserve not included.
  Parts SeatParts() const { return life.seats.Count() * generation.base; }
  Parts EqualShare() const { return kWhole / members.active().members.size(); }
  // The equal share that is this host's own: all of them sum to the whole at most.
  Parts OwnShare() const;
  void UpdateStanding();
  // After other settings, wanted or in force.
  void UseSettings() { witness.SetPatience(without.patience ? Duration(-1) : members.patience()); }

  CapacityMembers members;
  Witness witness;
  CapacityGeneration generation;
  CapacityLife life;
  CapacityBonds bonds;
  CapacityStanding standing;
  CapacityCounts counts;
  CapacityAblation without;
  std::uint64_t sequence = 0;    // of the last frame that is numbered

 private:
  CapacityTransport& transport_;
  CapacityMessage out_;
  std::string frame_;
};

}    // namespace dthrottle
