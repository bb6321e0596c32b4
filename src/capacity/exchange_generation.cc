// New generations: who begins them, promises, and joining one.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {
namespace {

constexpr unsigned kGenerationBits = 32;    // of a generation's number that say whose it is
constexpr int kLostSeatPatience = 3;        // in times that it takes to call a life over
constexpr int kAttemptPatience = 4;         // in such times; then it is tried under another number
constexpr int kSweepsPatience = 640;        // the most, in such times, between generations that make room

}    // namespace

bool ExchangeState::WishesReset(Instant now) const {
  const bool stuck = frozen() && now - acked_at > patience;
  const bool lost = residue || std::ranges::any_of(edges, [&](const Edge& e) {
                      return !e.left.empty() && now - e.left_at > kLostSeatPatience * patience;
                    });
  const bool full = ledgers.size() > wanted.tags_max / 4 * 3 && now - joined_at > sweep_after;
  return joined() && (stuck || lost || full);
}

void ExchangeState::JudgeSweep(Instant now) {
  if (!swept || now - joined_at < kLostSeatPatience * patience) return;
  const bool helped = 2 * ledgers.size() <= *swept;
  sweep_after = helped ? kSweepPatience * patience : std::min(2 * sweep_after, kSweepsPatience * patience);
  swept.reset();
}

bool ExchangeState::IsCoordinator(Instant now) {
  for (const std::string& name : wanted_witnesses) {
    if (IsSelf(name)) return true;
    if (Up(peers.at(name), now)) return false;
  }
  return false;
}

std::size_t ExchangeState::CountUp(const std::vector<std::string>& names, Instant now) {
  std::size_t up = 0;
  for (const std::string& name : names) up += IsSelf(name) || Up(peers.at(name), now);
  return up;
}

void ExchangeState::Coordinate(Instant now) {
  if (!IsCoordinator(now)) {
    attempt.reset();
    return;
  }
  if (attempt && now - attempt->since > kAttemptPatience * patience) attempt.reset();
  if (!attempt && !HasReason(now)) return;
  if (!attempt) Begin(now);
  if (!attempt) return;
  for (const std::string& name : wanted.members) {
    if (IsSelf(name)) continue;
    CapacityMessage& m = Fresh(CapacityKind::kPrepare);
    m.generation = attempt->generation;
    m.digest = wanted_digest;
    Send(name);
  }
  if (Promise(attempt->generation, now)) attempt->promised[options.name] = MakePromised(now);
  TryCommit(now);
}

bool ExchangeState::HasReason(Instant now) {
  if (!AllWantIt(now)) return false;
  if (!joined() || active_digest != wanted_digest) return true;
  MemberBits held = seats;
  bool wished = WishesReset(now);
  for (const auto& [name, peer] : peers) {
    if (!Up(peer, now) || peer.generation != generation) continue;
    held.Add(peer.seats);
    wished |= peer.wishes;
  }
  bool whole = true;
  for (std::size_t i = 0; i < active.members.size(); ++i) whole &= !participants.Has(i) || held.Has(i);
  if (whole) whole_at = now;
  // More was set aside for somebody who was not there than has to be.
  wished |= aside > reserve && CountUp(wanted.members, now) == wanted.members.size();
  return now - whole_at > kLostSeatPatience * patience || (wished && now - joined_at > kLostSeatPatience * patience);
}

bool ExchangeState::AllWantIt(Instant now) {
  if (CountUp(wanted_witnesses, now) < Majority(wanted_witnesses.size())) return false;
  if (CountUp(witnesses, now) < Majority(witnesses.size())) return false;
  bool elsewhere = false;
  for (const std::string& name : wanted.members) {
    if (IsSelf(name)) continue;
    const Peer& p = peers.at(name);
    if (!Up(p, now)) {
      if (now - started <= patience) return false;
      continue;
    }
    if (p.digest != wanted_digest) return false;
    elsewhere |= p.generation > generation;
  }
  return !elsewhere || now - started > 2 * patience;    // it will be told of a generation that there is
}

void ExchangeState::Begin(Instant now) {
  std::uint64_t highest = std::max({witness.promised(), generation, refused});
  for (const auto& [name, peer] : peers) highest = std::max(highest, peer.generation);
  const std::uint64_t whose = NameNumber(options.name) >> kGenerationBits;
  attempt = Attempt{((highest >> kGenerationBits) + 1) << kGenerationBits | whose, now, {}};
}

bool ExchangeState::Promise(std::uint64_t number, Instant now) {
  if (number < witness.promised() || number <= generation) return false;
  if (number == witness.promised()) return acked == number;
  witness.Promise(number);
  Save();
  acked = entitled_to = number;
  acked_at = now;
  UpdateStanding();
  return true;
}

Promised ExchangeState::MakePromised(Instant now) const {
  Promised p;
  p.former = generation;
  p.aside = std::max(reserve, aside);
  if (joined() && active_digest != wanted_digest) p.former_witnesses = witnesses;
  for (std::size_t i = 0; i < wanted.members.size(); ++i) {
    if (!IsSelf(wanted.members[i]) && witness.Lapsed(wanted.members[i], now)) p.lapsed.Add(i);
  }
  p.others_lapsed = std::ranges::all_of(
      active.members, [&](const std::string& name) { return IsIn(wanted.members, name) || witness.Lapsed(name, now); });
  return p;
}

void ExchangeState::OnPrepare(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.digest != wanted_digest) {
    ++counts.other_settings;
    return;
  }
  const std::uint64_t number = m.generation;
  const bool refuse = number < witness.promised();
  if (!refuse && !Promise(number, now)) return;
  CapacityMessage& reply = Fresh(CapacityKind::kPromise);
  reply.generation = refuse ? witness.promised() : number;
  reply.digest = wanted_digest;
  if (!refuse) {
    const Promised promised = MakePromised(now);
    reply.former = promised.former;
    reply.witnesses = promised.former_witnesses;
    reply.members = promised.lapsed;
    reply.last = promised.others_lapsed;
    reply.aside = promised.aside;
  }
  Send(p.name);
}

void ExchangeState::OnPromise(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.digest != wanted_digest || !attempt || !IsIn(wanted.members, p.name)) return;
  if (m.generation > attempt->generation) {
    refused = std::max(refused, m.generation);
    attempt.reset();
    return;
  }
  if (m.generation < attempt->generation) return;
  attempt->promised[p.name] = {m.former, m.witnesses, m.members, m.last, m.aside};
  TryCommit(now);
}

void ExchangeState::TryCommit(Instant now) {
  for (const std::string& name : wanted.members) {    // who is there but slow is waited for
    if (!IsSelf(name) && !attempt->promised.contains(name) && Up(peers.at(name), now) &&
        now - attempt->since <= patience && !without.promises) {
      return;
    }
  }
  if (!attempt->Suffices(wanted.members, wanted_witnesses, without.promises)) return;
  CapacityMessage& m = Fresh(CapacityKind::kCommit);
  m.generation = attempt->generation;
  m.digest = wanted_digest;
  m.reserve = ReserveParts(wanted);
  m.aside = m.reserve;
  const std::size_t n = wanted.members.size(), here = attempt->promised.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (attempt->promised.contains(wanted.members[i])) m.members.Add(i);
  }
  if (here < n) {
    for (const auto& [name, promised] : attempt->promised) m.aside = std::max(m.aside, promised.aside);
  }
  const Parts kept = here * m.reserve + (n - here) * m.aside;
  m.base = kept < kWhole ? (kWhole - kept) / here : 0;
  attempt.reset();
  const CapacityMessage agreed = m;
  Join(agreed, now);
  for (const std::string& name : wanted.members) {
    if (!IsSelf(name)) Send(name, commit);
  }
}

void ExchangeState::OnCommit(const CapacityMessage& m, Instant now) {
  if (m.digest != wanted_digest) {
    ++counts.other_settings;
    return;
  }
  if (m.generation <= generation || m.generation < acked || m.base > kWhole || m.reserve > kWhole) return;
  const CapacityMessage agreed = m;
  Join(agreed, now);
}

void ExchangeState::Join(const CapacityMessage& m, Instant now) {
  active = wanted;
  active_digest = wanted_digest;
  UseSettings();
  generation = m.generation;
  if (generation > witness.promised()) witness.Promise(generation);
  witness.SetWhole(acked == generation);
  witness.SetReserve(m.reserve);
  Save();
  base = m.base;
  reserve = m.reserve;
  aside = m.aside;
  participants = m.members;
  seats = MemberBits();
  const std::uint32_t self = MemberOf(options.name);
  if (entitled_to == generation && participants.Has(self)) seats.Add(self);
  entitled_to = 0;
  residue = false;
  swept = ledgers.size();
  joined_at = whole_at = now;
  ++counts.resets;
  clients.clear();
  closed.clear();
  settlings.clear();
  share_sums.Forget();
  EncodeCommit();
  MakeEdges(self);
  BeginLedgers();
  SendBeats(now);
}

void ExchangeState::EncodeCommit() {
  CapacityMessage& m = Fresh(CapacityKind::kCommit);
  m.digest = active_digest;
  m.base = base;
  m.reserve = reserve;
  m.aside = aside;
  m.members = participants;
  EncodeCapacity(m, commit);
}

void ExchangeState::MakeEdges(std::uint32_t self) {
  for (auto& [name, peer] : peers) {
    peer.slot = -1;
    peer.seats = MemberBits();
  }
  edges.clear();
  strength = active.graph.Strength(self);
  for (const Graph::Neighbour& n : active.graph.neighbours(self)) {
    Edge& edge = edges.emplace_back();
    edge.peer = &peers.at(active.members[n.node]);
    edge.weight = n.weight;
    edge.peer->slot = static_cast<int>(edges.size() - 1);
  }
}

}    // namespace dthrottle
