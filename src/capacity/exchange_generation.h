// New generations: who begins them, who promises, and joining one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "capacity/attempt.h"
#include "capacity/exchange_audit.h"
#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"
#include "capacity/exchange_gifts.h"

namespace dthrottle {

class CapacityGenerations {
 public:
  CapacityGenerations(CapacityCore& core, const CapacityBooks& books, const CapacityGifts& gifts,
                      const CapacityAudits& audits, BootInstant now);

  bool WishesReset(BootInstant now) const;
  // Only a new generation forgets tags that nobody asks for, and no host knows of all of them. So it is tried when a
  // table gets full, and more and more seldom if it does not help.
  void JudgeSweep(BootInstant now);
  // Blames the leader for a round without a lease, or without a generation that is due.
  void JudgeLeader(BootInstant now);
  // After other settings.
  void GiveUp() { attempt_.reset(); }

  // Each returns the generation that was agreed upon, if it was: this host begins it, with Enter().
  std::optional<CapacityMessage> Coordinate(BootInstant now);
  std::optional<CapacityMessage> OnPromise(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnPrepare(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // Whether a generation that a member tells of is one to join.
  bool Accepts(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);

  // Joins it: everything that belongs to another generation is over.
  void Enter(const CapacityMessage& m, BootInstant now);
  // This host stopped for a part of the new generation, and got none.
  void BlameFor(CapacityPeer& leader, BootInstant now);
  const std::string& commit() const { return commit_; }    // the frame that began the generation; empty: none did

  void Resume(BootInstant now);
  static void Fields(auto& state, auto& self) {
    state(self.well_at_, self.joined_at_, self.refused_, self.sweep_after_, self.swept_);
  }

 private:
  Duration SeatPatience() const { return kLostSeatPatience * members_.patience(); }
  // `rested`: how long a generation lasts at least, unless nobody has a lease.
  bool HasReason(Duration rested, BootInstant now);
  // Every member that is there has the same settings, and the others have been silent for long enough. `without` and
  // witnesses that are passed over do not count.
  bool AllWantIt(BootInstant now, const CapacityPeer* without = nullptr) const;
  void Begin(BootInstant now);
  // How long what was taken in the generation before is kept. `known`: this host was in one. REQUIRES: m is in force.
  void Rest(const CapacityMessage& m, bool known, BootInstant now);
  // This host's promise. False if it has given a later one, or an earlier life of it has given the same: what that did
  // with it is not known.
  bool Promise(std::uint64_t number, BootInstant now);
  std::optional<CapacityMessage> TryCommit(BootInstant now);
  // True of a generation that an honest witness does not begin: without a promise of this host, which has a lease, or
  // which never promised it and is said to take part.
  bool IsUnasked(const CapacityMessage& m, BootInstant now) const;
  void EncodeCommit();    // of the generation in force

  CapacityCore& core_;
  CapacityMembers& members_;
  const Ledgers& ledgers_;
  const CapacityGifts& gifts_;
  const CapacityAudits& audits_;
  std::optional<Attempt> attempt_;
  BootInstant joined_at_{}, whole_at_{};
  BootInstant well_at_{};    // when there was a lease last, or could be none
  Duration rest_{};          // how long this generation lasts at least if a member wishes for another
  bool hurry_ = false;       // a witness is passed over: the next one need not wait
  MemberBits company_;       // who is there, without the leader
  BootInstant company_since_{};
  std::uint64_t refused_ = 0;           // a member has promised this number already
  Duration sweep_after_{};              // how long a generation lasts at least if a table gets full
  std::optional<std::size_t> swept_;    // ledgers at its beginning
  std::string commit_;
};

}    // namespace dthrottle
