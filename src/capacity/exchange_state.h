// The inside of a CapacityExchange: its parts, what goes from one to another, and this host's being alive (beats,
// leases, lives). For capacity_exchange.cc, and for simulations that leave safety rules out.
#pragma once

#include <string>
#include <string_view>

#include "base/prng.h"
#include "capacity/ablation.h"
#include "capacity/capacity_exchange.h"
#include "capacity/capacity_message.h"
#include "capacity/exchange_audit.h"
#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"
#include "capacity/exchange_generation.h"
#include "capacity/exchange_gifts.h"
#include "capacity/exchange_heir.h"
#include "capacity/exchange_log.h"

namespace dthrottle {

struct ExchangeState {
  // REQUIRES: as CapacityExchange.
  ExchangeState(const CapacityExchange::Options& options, CapacitySettings settings, CapacityTransport& transport,
                Prng prng, BootInstant now);

  // From now on `exchange` does without these rules.
  static void LeaveOut(CapacityExchange& exchange, const CapacityAblation& rules) {
    exchange.state_->core.without = rules;
    exchange.state_->core.UseSettings();
  }

  void SetSettings(CapacitySettings settings);
  // What core.counts and `in` have received.
  void OnMessage(std::string_view proven, BootInstant now);
  BootInstant Tick(BootInstant now);

  // ---- Over a restart ----

  std::string Life() const;
  // Goes on with a life that Life() has written. False: it cannot, and this object is of no use any more.
  bool Resume(std::string_view life, BootInstant now);

  CapacityCore core;
  CapacityMembers& members = core.members;
  CapacityBooks books{core};
  CapacityGifts gifts{core, books};
  CapacityLogging logging{core, books, gifts};
  CapacityHeir heir{core, books, gifts, logging};
  CapacityAudits audits{core, books};
  CapacityGenerations generations;
  CapacityMessage in;

 private:
  void Dispatch(CapacityPeer& p, BootInstant now);
  void SendBeats(BootInstant now);
  const std::string& Beat(BootInstant now);
  // A host that is a witness itself.
  void OnSelf(BootInstant now);
  void OnBeat(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnGrant(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnDead(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnHave(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnHaveLog(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnCommit(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // The lease lasts as long as a majority of witnesses says.
  void CountGrants();
  // What this host had is another's now: begin with nothing, and earn (rule 6).
  void NewLife();
  void BeginLedgers();
  // Begins a generation that was agreed upon, and says so.
  void Conclude(const std::optional<CapacityMessage>& agreed, BootInstant now);
  void Join(const CapacityMessage& m, BootInstant now);
  static void Fields(auto& state, auto& self);

  BootInstant next_round_{};
  bool was_leased_ = false;
};

}    // namespace dthrottle
