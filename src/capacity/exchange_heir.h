// The best friend's part: other hosts' logs, their inheritance, and what was under way when a host died.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/state.h"
#include "capacity/client_log.h"
#include "capacity/exchange_books.h"
#include "capacity/exchange_core.h"
#include "capacity/exchange_gifts.h"
#include "capacity/exchange_log.h"
#include "capacity/settling.h"

namespace dthrottle {

class CapacityHeir {
 public:
  CapacityHeir(CapacityCore& core, CapacityBooks& books, CapacityGifts& gifts, CapacityLogging& logging)
      : core_(core), members_(core.members), books_(books), ledgers_(books.ledgers()), gifts_(gifts),
        logging_(logging) {}

  // A new generation: nobody's log counts any more.
  void Forget();
  // The ledgers have begun anew.
  void Begin() { estates_.clear(); }

  const std::list<ClientLog>& clients() const { return clients_; }
  void OnLog(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // A member says that it is alive, and which bond is in force.
  void OnBeat(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // Asks the witnesses about clients that are not heard any more, or live again.
  void WatchClients(BootInstant now);
  // The part of a witness.
  void OnFence(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnFenced(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);

  void OnSettle(CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  void OnHaveSettle(const CapacityPeer& p, const CapacityMessage& m);
  void SendSettlings();
  // Inherited seats are written into the log when the loss of this host would not lose anything of them.
  void SecureEstates();

  static void Fields(auto& state, auto& self) {
    state(self.estates_, self.clients_, self.closed_, self.settlings_);
    if constexpr (kIsReading<decltype(state)>) state.Check(state.ok() && self.Possible());
  }
  void Resume(BootInstant now) {
    for (ClientLog& log : clients_) log.heard = now;
  }

 private:
  // Seats that the best friend is told of as soon as everything about them is logged and settled.
  struct Estate {
    MemberBits seats;
    std::string dead;
    std::uint64_t life = 0;
    bool failed = false;    // a neighbour could not be reached

    static void Fields(auto& state, auto& self) { state(self.seats, self.dead, self.life, self.failed); }
  };
  using Log = std::list<ClientLog>::iterator;

  bool Possible() const;    // what was read
  // The log of a member's life and bond that the frame belongs to; null: it is not kept.
  ClientLog* LogFor(const CapacityPeer& p, const CapacityMessage& m, BootInstant now);
  // A log that is of no use any more must not begin anew: it would lack what it had.
  Log Close(Log log);
  void AskFence(ClientLog& log, BootInstant now);
  void AskFence(std::string_view host, std::uint64_t life, std::string_view witness);
  std::optional<std::uint64_t> Fence(std::string_view host, std::uint64_t life, BootInstant now);
  // True if nothing is to be waited for any more.
  bool Settle(ClientLog& log, BootInstant now);
  void Inherit(const ClientLog& log, BootInstant now);
  // The seats in a log that can be its owner's: taken part, not here, and not with the member whose own they are.
  MemberBits SeatsOf(const ClientLog& log, BootInstant now) const;

  void SettleEdges(const ClientLog& log, BootInstant now);
  void SendSettling(const Settling& s, std::size_t frame);
  // Whether a majority of witnesses says that this life of a neighbour is over. If not, they are asked.
  bool IsOver(GiftEdge& edge, std::uint64_t life, BootInstant now);
  // What the log of a dead neighbour says: what it gave has come, and what it did not receive comes back.
  void SettleWith(std::string_view dead, std::uint64_t life, std::span<const CapacityItem> items,
                  std::span<const EdgeSums> sums, bool last, BootInstant now);
  void SettleEdge(std::uint32_t id, GiftEdge::Left& left, const EdgeSums& theirs);
  // Something is lost that only a new generation brings back, and the best friend is told so.
  void Lose() {
    core_.life.residue = true;
    logging_.Head();
  }

  CapacityCore& core_;
  CapacityMembers& members_;
  CapacityBooks& books_;
  Ledgers& ledgers_;
  CapacityGifts& gifts_;
  CapacityLogging& logging_;
  std::list<ClientLog> clients_;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> closed_;    // lives and bindings not to be kept again
  std::vector<Settling> settlings_;
  std::vector<Estate> estates_;
};

}    // namespace dthrottle
