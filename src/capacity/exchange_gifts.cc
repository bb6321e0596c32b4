// Ledgers, rounds, and gifts to neighbours.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"
#include "capacity/transfer.h"

namespace dthrottle {
namespace {

constexpr std::uint64_t kRefreshRounds = 64;    // an indicator is told again after so many, in case it got lost
constexpr double kDemandFloor = 0.01;           // of an equal share: what a host with no demand counts as having

}    // namespace

std::uint32_t ExchangeState::AddLedger(const CapacityKey& key) {
  if (ledgers.size() >= wanted.tags_max) {
    ++counts.tags_refused;
    return KeyIndex::kNone;
  }
  return MakeLedger(key, AvailableElsewhere());
}

std::uint32_t ExchangeState::MakeLedger(const CapacityKey& key, std::int64_t available) {
  const std::uint32_t id = ledgers.Add(key, available);
  Ledger& ledger = ledgers[id];
  // The log says what it says of a tag without a ledger, and that is right as long as nothing moves.
  ledger.bond = candidate.number;
  if (const auto at = demands.find(key); at != demands.end()) Want(id, at->second);
  QueueShare(id);
  return id;
}

void ExchangeState::Want(std::uint32_t id, const Asked& asked) {
  Ledger& ledger = ledgers[id];
  ledger.demand = asked.demand;
  ledger.pinned = static_cast<std::int64_t>(asked.pinned > reserve ? asked.pinned - reserve : 0);
  if (std::exchange(ledger.pin, asked.pin) != asked.pin) QueueShare(id);
}

void ExchangeState::QueueGift(std::uint32_t id, std::size_t slot) {
  LedgerEdge& e = ledgers.edge(id, slot);
  if (e.flying || std::exchange(e.queued, true)) return;
  edges[slot].waiting.push_back(id);
}

Load ExchangeState::LoadOf(double demand, std::int64_t available) const {
  // A host that reports nothing takes no part.
  const bool reported = active.indicator == &Reported();
  const double floor = reported ? 0 : kDemandFloor / static_cast<double>(active.members.size());
  return {std::max(demand, floor),
          static_cast<double>(reserve + static_cast<Parts>(available)) / static_cast<double>(kWhole)};
}

void ExchangeState::Round(Instant now) {
  ++counts.rounds;
  const bool may_give = Leased(now) && bond.number != 0 && candidate.number == 0;
  std::vector<bool> there;
  for (const Edge& e : edges) {
    there.push_back(e.life != 0 && e.peer->generation == generation && e.peer->epoch == e.life && e.peer->heard &&
                    now - *e.peer->heard <= active.lease);
  }
  for (std::uint32_t id = 0; id < ledgers.size(); ++id) RoundOf(id, there, may_give);
}

void ExchangeState::RoundOf(std::uint32_t id, const std::vector<bool>& there, bool may_give) {
  Ledger& ledger = ledgers[id];
  const Load load = LoadOf(ledger.demand, ledger.available);
  const std::optional<double> own = IndicatorOf(load);
  const std::size_t degree = edges.size();
  const double gain = own ? Gain(load.demand, Worst(id, *own)) * static_cast<double>(kWhole) : 0;
  bool gave = false;
  std::int64_t blocked = 0;
  if (may_give && own) {
    const std::size_t first = counts.rounds % std::max<std::size_t>(degree, 1);
    for (std::size_t i = 0; i < degree; ++i) {
      const std::size_t slot = first + i < degree ? first + i : first + i - degree;
      const LedgerEdge& e = ledgers.edge(id, slot);
      if (!there[slot] || !(static_cast<double>(e.theirs) > *own)) continue;
      const Parts due =
          Gift(*own, static_cast<double>(e.theirs), gain * edges[slot].weight, static_cast<Parts>(ledger.available));
      if (due < GiftMin()) continue;
      const Parts gift = std::min(due, static_cast<Parts>(std::max<std::int64_t>(ledger.available - ledger.pinned, 0)));
      blocked += static_cast<std::int64_t>(due - gift);
      if (gift < GiftMin() || (e.arrived != e.given && !without.one_gift)) continue;
      ledgers.Give(id, slot, gift);
      if (without.log) QueueGift(id, slot);
      ++counts.gifts;
      gave = true;
    }
  }
  if (gave) Changed(id);
  blocked = std::min(blocked, ledger.available);
  if (std::exchange(ledger.blocked, blocked) != blocked) QueueShare(id);
  const auto q =
      static_cast<float>(gave ? IndicatorOf(LoadOf(ledger.demand, ledger.available)).value_or(NAN) : own.value_or(NAN));
  const auto tell_above = static_cast<float>(static_cast<double>(GiftMin()) / std::max(gain, 1.0) / 2);
  const bool refresh = (id + counts.rounds) % kRefreshRounds == 0;
  for (std::size_t slot = 0; slot < degree; ++slot) {
    const LedgerEdge& e = ledgers.edge(id, slot);
    if (!there[slot] || (e.given > e.logged && !without.log)) continue;    // told with the gift, once that is logged
    const bool told = std::isnan(q) ? std::isnan(e.told) : std::abs(q - e.told) < tell_above;
    if (!told || refresh || e.logged > e.arrived) QueueGift(id, slot);
  }
}

double ExchangeState::Worst(std::uint32_t id, double own) const {
  double worst = own;
  for (std::size_t slot = 0; slot < edges.size(); ++slot) {
    if (const auto theirs = static_cast<double>(ledgers.edge(id, slot).theirs); theirs > worst) worst = theirs;
  }
  return worst;
}

void ExchangeState::FlushGifts(Instant now) {
  if (!joined() || frozen()) return;
  for (std::size_t slot = 0; slot < edges.size(); ++slot) {
    if (edges[slot].life != 0 && candidate.number == 0) FlushGifts(slot, now);
  }
}

void ExchangeState::FlushGifts(std::size_t slot, Instant now) {
  Edge& edge = edges[slot];
  const std::size_t most = ItemsMax(CapacityKind::kGifts, 0);
  for (std::size_t i = 0; i < edge.waiting.size();) {
    CapacityMessage& m = Fresh(CapacityKind::kGifts);
    m.to_epoch = edge.life;
    m.sequence = ++sequence;
    Flight flight{m.sequence, now, {}};
    flight.said.reserve(std::min(most, edge.waiting.size() - i));
    for (; i < edge.waiting.size() && m.items.size() < most; ++i) {
      const std::uint32_t id = edge.waiting[i];
      LedgerEdge& e = ledgers.edge(id, slot);
      e.queued = false;
      e.flying = true;
      e.told = static_cast<float>(
          IndicatorOf(LoadOf(ledgers[id].demand, ledgers[id].available)).value_or(LedgerEdge::kUnsaid));
      const Parts given = without.log ? e.given : e.logged;
      CapacityItem& item = m.items.emplace_back();
      item.key = ledgers[id].key;
      item.given = given;
      item.indicator = static_cast<double>(e.told);
      flight.said.emplace_back(id, given);
    }
    edge.flights.push_back(std::move(flight));
    Send(edge.peer->name);
  }
  edge.waiting.clear();
}

void ExchangeState::OnGifts(Peer& p, const CapacityMessage& m, Instant now) {
  if (!FromNeighbour(p, m, now)) return;
  const auto slot = static_cast<std::size_t>(p.slot);
  for (const CapacityItem& item : m.items) {
    const std::uint32_t id = LedgerFor(item, edges[slot]);
    if (id == KeyIndex::kNone) continue;
    const bool is_number = std::abs(item.indicator) <= static_cast<double>(std::numeric_limits<float>::max());
    ledgers.edge(id, slot).theirs = is_number ? static_cast<float>(item.indicator) : LedgerEdge::kUnsaid;
    if (ledgers.Receive(id, slot, item.given)) Changed(id);
  }
  Acknowledge(p, m);
}

std::uint32_t ExchangeState::LedgerFor(const CapacityItem& item, const Edge& edge) {
  const std::uint32_t id = ledgers.Find(item.key);
  if (id != KeyIndex::kNone) return id;
  // Neighbours' wishes leave half of the room to tags that are asked for here.
  if (seats.Count() == 0 || ledgers.size() >= demands.size() + wanted.tags_max / 2) return id;
  const Load load = LoadOf(0, AvailableElsewhere());
  const std::optional<double> own = IndicatorOf(load);
  if (!own || !(item.indicator > *own)) return id;
  const double gain = Gain(load.demand, item.indicator) * edge.weight * static_cast<double>(kWhole);
  if (Gift(*own, item.indicator, gain, seats.Count() * base) < GiftMin()) return id;
  return AddLedger(item.key);
}

bool ExchangeState::FromNeighbour(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || !joined() || p.slot < 0) return false;
  SeeLife(p, m.epoch, now);
  return m.epoch == edges[static_cast<std::size_t>(p.slot)].life && m.to_epoch == epoch;
}

void ExchangeState::Acknowledge(Peer& p, const CapacityMessage& m) {
  const auto answered = static_cast<std::uint64_t>(m.kind);
  const std::uint64_t number = m.sequence, life = m.epoch;
  CapacityMessage& reply = Fresh(CapacityKind::kHave);
  reply.to_epoch = life;
  reply.answered = answered;
  reply.sequence = number;
  Send(p.name);
}

void ExchangeState::OnHave(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || m.to_epoch != epoch) return;
  switch (CapacityKind{static_cast<std::uint8_t>(m.answered)}) {
    case CapacityKind::kGifts:
      return OnHaveGifts(p, m, now);
    case CapacityKind::kLog:
      return OnHaveLog(p, m, now);
    case CapacityKind::kSettle:
      return OnHaveSettle(p, m);
    default:
      ++counts.junk;
  }
}

std::optional<ExchangeState::Flight> ExchangeState::TakeFlight(std::deque<Flight>& flights, std::uint64_t sequence) {
  const auto at = std::ranges::find(flights, sequence, &Flight::sequence);
  if (at == flights.end()) return std::nullopt;
  Flight flight = std::move(*at);
  flights.erase(at);
  return flight;
}

void ExchangeState::OnHaveGifts(Peer& p, const CapacityMessage& m, Instant now) {
  if (!FromNeighbour(p, m, now)) return;
  const auto slot = static_cast<std::size_t>(p.slot);
  const std::optional<Flight> flight = TakeFlight(edges[slot].flights, m.sequence);
  if (!flight) return;
  for (const auto& [id, given] : flight->said) {
    LedgerEdge& e = ledgers.edge(id, slot);
    e.flying = false;
    e.arrived = std::max(e.arrived, given);
    if (e.logged > e.arrived) QueueGift(id, slot);
  }
}

void ExchangeState::SeeLife(Peer& p, std::uint64_t life, Instant now) {
  if (life < p.epoch || life == 0) return;
  if (life > p.epoch) {
    // A new life costs a walk through all ledgers, so nobody has more than one an interval.
    if (p.epoch != 0 && now < p.epoch_since + active.interval) return;
    p.epoch = life;
    p.epoch_since = now;
  }
  if (p.slot < 0) return;
  Edge& edge = edges[static_cast<std::size_t>(p.slot)];
  if (life <= edge.life || life <= edge.former) return;
  if (edge.life != 0) EndLife(static_cast<std::size_t>(p.slot), now);
  edge.life = life;
  for (std::uint32_t id = 0; id < ledgers.size(); ++id) QueueGift(id, static_cast<std::size_t>(p.slot));
}

void ExchangeState::EndLife(std::size_t slot, Instant now) {
  Edge& edge = edges[slot];
  residue |= !edge.left.empty();
  edge.left.clear();
  edge.left_at = now;
  edge.former = std::exchange(edge.life, 0);
  edge.waiting.clear();
  edge.flights.clear();
  for (std::uint32_t id = 0; id < ledgers.size(); ++id) {
    const LedgerEdge was = ledgers.Renew(id, slot);
    if (was.given == 0 && was.received == 0) continue;
    edge.left[id] = {was.given, was.received};
    Changed(id);
  }
}

}    // namespace dthrottle
