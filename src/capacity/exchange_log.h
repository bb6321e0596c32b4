// The log at the best friend, and the bond with it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"
#include "capacity/exchange_gifts.h"

namespace dthrottle {

class CapacityLogging {
 public:
  CapacityLogging(CapacityCore& core, CapacityBooks& books, CapacityGifts& gifts)
      : core_(core), members_(core.members), books_(books), ledgers_(books.ledgers()), gifts_(gifts) {}

  // The ledgers have begun anew: nothing is logged anywhere.
  void Begin();
  // Looks for another friend if the one there is does not do, or does not answer.
  void Bind(BootInstant now);
  // A majority of witnesses knows the friend that has the whole log: from now on its log counts.
  void Commit();
  // Says what changed; a frame is due even if no ledger has changed after Head().
  void Flush(BootInstant now);
  void Head() { heading_ = true; }
  bool urgent() const { return heading_ || core_.bonds.changing(); }    // does not wait for the round
  // True if it is a frame that was under way.
  bool OnHave(const CapacityPeer& p, const CapacityMessage& m);
  // True once for a candidate: it has every ledger.
  bool Completes();
  void SayAgain(BootInstant now);

  // REQUIRES of what is read into: the members and the books were read.
  static void Fields(auto& state, auto& self) {
    self.BondFields(state, self.core_.bonds.bond);
    self.BondFields(state, self.core_.bonds.candidate);
    state(self.bindings_, self.core_.bonds.complete);
    if constexpr (kIsReading<decltype(state)>) {
      if (state.ok()) self.QueueAll();
    }
  }

 private:
  // A bond with its friend by name.
  void BondFields(auto& state, auto& bond) const {
    std::string name = bond.friend_ != nullptr ? bond.friend_->name : "";
    state(name, bond.life, bond.number);
    if constexpr (kIsReading<decltype(state)>) {
      bond.friend_ = members_.Find(name);
      state.Check(bond.friend_ != nullptr || bond.number == 0);
    }
  }

  bool Fine(const CapacityBond& b, BootInstant now) const;
  // The next member after that one that is there; null: there is none but that one.
  CapacityPeer* FriendAfter(std::size_t number, BootInstant now);
  CapacityMessage& Frame(const CapacityBond& to);
  void Note(std::uint32_t id, CapacityMessage& m);
  void Logged(std::uint32_t id);
  void QueueAll();

  CapacityCore& core_;
  CapacityMembers& members_;
  CapacityBooks& books_;
  Ledgers& ledgers_;
  CapacityGifts& gifts_;
  std::deque<CapacityFlight> flights_;
  std::optional<BootInstant> asked_at_;    // the friend has answered nothing since; none: there is nothing to answer
  std::uint64_t bindings_ = 0;
  std::size_t behind_ = 0;    // ledgers that the candidate has not got yet
  bool heading_ = false;      // a frame is due even if no ledger has changed
};

}    // namespace dthrottle
