// A life that goes on in another program: an upgrade, or a restart that is soon over.
//
// For the other hosts it is a pause. What this host holds it holds no longer than its lease says, and a witness that
// has called the life over says so at the first beat, as after a pause of any other kind. So whatever of a life is
// written must be read once at the most, and by the clock of the same boot: that is for the caller to see to.
//
// Frames that were on their way are forgotten: what was said in them is queued again, and sums only grow. So is an
// attempt at a new generation, which is made again.
#include <utility>

#include "base/state.h"
#include "capacity/exchange_state.h"

namespace dthrottle {
namespace {

constexpr std::uint32_t kLifeVersion = 1;

// A bond with its friend by name.
void BondFields(auto& state, auto& self, auto& bond) {
  std::string name = bond.friend_ != nullptr ? bond.friend_->name : "";
  state(name, bond.life, bond.number);
  if constexpr (kIsReading<decltype(state)>) {
    bond.friend_ = self.Find(name);
    state.Check(bond.friend_ != nullptr || bond.number == 0);
  }
}

void PeerFields(auto& state, auto& self) {
  std::uint64_t left = self.peers.size();
  state(left);
  if constexpr (!kIsReading<decltype(state)>) {
    for (const auto& [name, peer] : self.peers) state(name, peer);
  } else {
    for (std::string name; left > 0 && state.ok(); --left) {
      state(name);
      ExchangeState::Peer nobody(name);    // any more: members of settings that never came into force
      ExchangeState::Peer* const peer = self.Find(name);
      state(peer != nullptr ? *peer : nobody);
    }
  }
}

}    // namespace

void ExchangeState::Fields(auto& state, auto& self) {
  PeerFields(state, self);
  state(self.generation, self.acked, self.entitled_to, self.well_at, self.joined_at, self.refused, self.sweep_after,
        self.swept, self.base, self.reserve, self.aside, self.participants);
  state.Check(self.base <= kWhole && self.reserve <= kWhole && self.aside <= kWhole && self.generation != 0);
  state(self.epoch, self.seats, self.secured, self.leased_until, self.self_until, self.self_binding, self.was_leased,
        self.standing.serial, self.demands, self.ledgers);
  for (auto& edge : self.edges) {
    state(edge);
    for (const auto& [id, left] : edge.left) state.Check(id < self.ledgers.size());
  }
  BondFields(state, self, self.bond);
  BondFields(state, self, self.candidate);
  state(self.bindings, self.complete, self.estates, self.residue, self.clients, self.closed, self.settlings,
        self.sequence, self.witness);
  for (const ClientLog& log : self.clients) {
    state.Check(IsIn(self.active.members, log.host) &&
                log.degree() == self.active.graph.Degree(self.MemberOf(log.host)));
  }
  for (const Settling& s : self.settlings) state.Check(self.peers.contains(s.to));
}

std::string ExchangeState::Life() const {
  if (!joined()) return {};
  StateWriter state;
  state(kLifeVersion, options.name, active_digest);
  Fields(state, *this);
  return state.Take();
}

bool ExchangeState::Resume(std::string_view life, Instant now) {
  StateReader state(life);
  std::uint32_t version = 0;
  std::string name;
  state(version, name, active_digest);
  // Under other settings there would be other members, edges and seats.
  if (!state.ok() || version != kLifeVersion || name != options.name || active_digest != wanted_digest) return false;
  active = wanted;
  UseSettings();
  MakeEdges(MemberOf(options.name));
  ledgers.Clear(edges.size());
  Fields(state, *this);
  if (!state.ok() || !state.at_end() || witness.promised() < generation) return false;
  // Nobody is silent because this host was away.
  started = whole_at = well_at = now;
  witness.Resume(now);
  for (ClientLog& log : clients) log.heard = now;
  QueueAll();
  EncodeCommit();
  UpdateStanding();
  return true;
}

void ExchangeState::QueueAll() {
  behind = unlogged_estate = 0;
  heading = true;
  for (std::uint32_t id = 0; id < ledgers.size(); ++id) {
    Ledger& ledger = ledgers[id];
    behind += candidate.number != 0 && ledger.bond != candidate.number;
    unlogged_estate += ledger.estate != Ledger::Estate::kNone;
    if (ledger.log_queued) log_waiting.push_back(id);
    QueueShare(id);
    for (std::size_t slot = 0; slot < edges.size(); ++slot) {
      if (ledgers.edge(id, slot).queued) edges[slot].waiting.push_back(id);
    }
  }
}

}    // namespace dthrottle
