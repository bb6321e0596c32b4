#include "capacity/exchange_gifts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "capacity/gain.h"
#include "capacity/transfer.h"

namespace dthrottle {
namespace {

constexpr int kGiftShareBits = 12;              // a gift is at least this power of two less than an equal share
constexpr std::uint64_t kRefreshRounds = 64;    // an indicator is told again after so many, in case it got lost

}    // namespace

std::optional<CapacityFlight> TakeFlight(std::deque<CapacityFlight>& flights, std::uint64_t sequence) {
  const auto at = std::ranges::find(flights, sequence, &CapacityFlight::sequence);
  if (at == flights.end()) return std::nullopt;
  CapacityFlight flight = std::move(*at);
  flights.erase(at);
  return flight;
}

void CapacityGifts::MakeEdges() {
  for (auto& [name, peer] : members_.peers()) {
    peer.slot = -1;
    peer.seats = MemberBits();
  }
  edges_.clear();
  strength_ = members_.active().graph.Strength(members_.SelfNumber());
  for (const Graph::Neighbour& n : members_.active().graph.neighbours(members_.SelfNumber())) {
    GiftEdge& edge = edges_.emplace_back();
    edge.peer = &members_.peer(members_.active().members[n.node]);
    edge.weight = n.weight;
    edge.peer->slot = static_cast<int>(edges_.size() - 1);
  }
}

void CapacityGifts::Begin() {
  for (GiftEdge& edge : edges_) {
    edge.left.clear();
    edge.waiting.clear();
    edge.flights.clear();
  }
}

bool CapacityGifts::Unsettled() const {
  return std::ranges::any_of(edges_, [](const GiftEdge& e) { return !e.left.empty(); });
}

bool CapacityGifts::Unsettled(Duration longer, BootInstant now) const {
  return std::ranges::any_of(edges_,
                             [&](const GiftEdge& e) { return !e.left.empty() && now - e.left_at > longer; });
}

void CapacityGifts::QueueAll() {
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) {
    for (std::size_t slot = 0; slot < edges_.size(); ++slot) {
      if (ledgers_.edge(id, slot).queued) edges_[slot].waiting.push_back(id);
    }
  }
}

Parts CapacityGifts::GiftMin() const {
  return std::max<Parts>(core_.EqualShare() >> kGiftShareBits, 1);
}

double CapacityGifts::Gain(double demand, double worst) const {
  const CapacitySettings& s = members_.active();
  const double most = LocalGainMax(s.indicator->InverseSlope(demand, worst), strength_);
  return s.gain ? std::min(*s.gain, most) : most / 2;
}

void CapacityGifts::Queue(std::uint32_t id, std::size_t slot) {
  LedgerEdge& e = ledgers_.edge(id, slot);
  if (e.flying || std::exchange(e.queued, true)) return;
  edges_[slot].waiting.push_back(id);
}

std::vector<bool> CapacityGifts::Reachable(BootInstant now) const {
  std::vector<bool> there;
  for (const GiftEdge& e : edges_) {
    const CapacityPeer& p = *e.peer;
    there.push_back(e.life != 0 && p.generation == core_.generation.number && p.epoch == e.life && p.heard &&
                    now - *p.heard <= members_.active().lease);
  }
  return there;
}

void CapacityGifts::Round(BootInstant now) {
  ++core_.counts.rounds;
  const bool may_give = core_.Leased(now) && core_.bonds.bond.number != 0 && !core_.bonds.changing();
  const std::vector<bool> there = Reachable(now);
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) RoundOf(id, there, may_give);
}

void CapacityGifts::RoundOf(std::uint32_t id, const std::vector<bool>& there, bool may_give) {
  Ledger& ledger = ledgers_[id];
  const Load load = books_.LoadOf(ledger.demand, ledger.available);
  const std::optional<double> own = books_.IndicatorOf(load);
  const double gain = own ? Gain(load.demand, Worst(id, *own)) * static_cast<double>(kWhole) : 0;
  const std::int64_t was_blocked = std::exchange(ledger.blocked, 0);
  const bool gave = may_give && own && Give(id, *own, gain, there);
  if (gave) books_.Changed(id);
  ledger.blocked = std::min(ledger.blocked, ledger.available);
  if (ledger.blocked != was_blocked) books_.QueueShare(id);
  Tell(id, static_cast<float>((gave ? books_.IndicatorOf(ledger) : own).value_or(NAN)), gain, there);
}

bool CapacityGifts::Give(std::uint32_t id, double own, double gain, const std::vector<bool>& there) {
  Ledger& ledger = ledgers_[id];
  bool gave = false;
  const std::size_t degree = edges_.size(), first = core_.counts.rounds % std::max<std::size_t>(degree, 1);
  for (std::size_t i = 0; i < degree; ++i) {
    const std::size_t slot = first + i < degree ? first + i : first + i - degree;
    const LedgerEdge& e = ledgers_.edge(id, slot);
    if (!there[slot] || !(static_cast<double>(e.theirs) > own)) continue;
    const Parts due =
        Gift(own, static_cast<double>(e.theirs), gain * edges_[slot].weight, static_cast<Parts>(ledger.available));
    if (due < GiftMin()) continue;
    const Parts gift = std::min(due, static_cast<Parts>(std::max<std::int64_t>(ledger.available - ledger.pinned, 0)));
    ledger.blocked += static_cast<std::int64_t>(due - gift);
    if (gift < GiftMin() || (e.arrived != e.given && !core_.without.one_gift)) continue;
    ledgers_.Give(id, slot, gift);
    if (core_.without.log) Queue(id, slot);
    ++core_.counts.gifts;
    gave = true;
  }
  return gave;
}

void CapacityGifts::Tell(std::uint32_t id, float indicator, double gain, const std::vector<bool>& there) {
  const auto tell_above = static_cast<float>(static_cast<double>(GiftMin()) / std::max(gain, 1.0) / 2);
  const bool refresh = (id + core_.counts.rounds) % kRefreshRounds == 0;
  for (std::size_t slot = 0; slot < edges_.size(); ++slot) {
    const LedgerEdge& e = ledgers_.edge(id, slot);
    // An indicator is told with a gift, once that is logged.
    if (!there[slot] || (e.given > e.logged && !core_.without.log)) continue;
    const bool told = std::isnan(indicator) ? std::isnan(e.told) : std::abs(indicator - e.told) < tell_above;
    if (!told || refresh || e.logged > e.arrived) Queue(id, slot);
  }
}

double CapacityGifts::Worst(std::uint32_t id, double own) const {
  double worst = own;
  for (std::size_t slot = 0; slot < edges_.size(); ++slot) {
    if (const auto theirs = static_cast<double>(ledgers_.edge(id, slot).theirs); theirs > worst) worst = theirs;
  }
  return worst;
}

void CapacityGifts::Flush(BootInstant now) {
  if (!core_.generation.running() || core_.bonds.changing()) return;
  for (std::size_t slot = 0; slot < edges_.size(); ++slot) {
    if (edges_[slot].life != 0) Flush(slot, now);
  }
}

void CapacityGifts::Flush(std::size_t slot, BootInstant now) {
  GiftEdge& edge = edges_[slot];
  const std::size_t most = ItemsMax(CapacityKind::kGifts, 0);
  for (std::size_t i = 0; i < edge.waiting.size();) {
    CapacityMessage& m = core_.Fresh(CapacityKind::kGifts);
    m.to_epoch = edge.life;
    m.sequence = ++core_.sequence;
    CapacityFlight flight{m.sequence, now, {}};
    flight.said.reserve(std::min(most, edge.waiting.size() - i));
    for (; i < edge.waiting.size() && m.items.size() < most; ++i) {
      const std::uint32_t id = edge.waiting[i];
      const Ledger& ledger = ledgers_[id];
      LedgerEdge& e = ledgers_.edge(id, slot);
      e.queued = false;
      e.flying = true;
      e.told = static_cast<float>(books_.IndicatorOf(ledger).value_or(LedgerEdge::kUnsaid));
      const Parts given = core_.without.log ? e.given : e.logged;
      CapacityItem& item = m.items.emplace_back();
      item.key = ledger.key;
      item.given = given;
      item.indicator = static_cast<double>(e.told);
      flight.said.emplace_back(id, given);
    }
    edge.flights.push_back(std::move(flight));
    core_.Send(edge.peer->name);
  }
  edge.waiting.clear();
}

void CapacityGifts::SayAgain(BootInstant now) {
  const Duration late = kFlightRounds * members_.active().interval;
  for (std::size_t slot = 0; slot < edges_.size(); ++slot) {
    std::deque<CapacityFlight>& flights = edges_[slot].flights;
    for (; !flights.empty() && now - flights.front().sent > late; flights.pop_front()) {
      for (const auto& [id, given] : flights.front().said) {
        ledgers_.edge(id, slot).flying = false;
        Queue(id, slot);
      }
    }
  }
}

void CapacityGifts::OnGifts(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!FromNeighbour(p, m, now)) return;
  const auto slot = static_cast<std::size_t>(p.slot);
  for (const CapacityItem& item : m.items) {
    const std::uint32_t id = LedgerFor(item, edges_[slot]);
    if (id == KeyIndex::kNone) continue;
    const bool is_number = std::abs(item.indicator) <= static_cast<double>(std::numeric_limits<float>::max());
    ledgers_.edge(id, slot).theirs = is_number ? static_cast<float>(item.indicator) : LedgerEdge::kUnsaid;
    if (ledgers_.Receive(id, slot, item.given)) books_.Changed(id);
  }
  core_.Acknowledge(p, m);
}

std::uint32_t CapacityGifts::LedgerFor(const CapacityItem& item, const GiftEdge& edge) {
  const std::uint32_t id = ledgers_.Find(item.key);
  if (id != KeyIndex::kNone) return id;
  // Neighbours' wishes leave half of the room to tags that are asked for here.
  const std::size_t room = books_.asked() + members_.wanted().tags_max / 2;
  if (core_.life.seats.Count() == 0 || ledgers_.size() >= room) return id;
  const Load load = books_.LoadOf(0, static_cast<std::int64_t>(core_.SeatParts()));
  const std::optional<double> own = books_.IndicatorOf(load);
  if (!own || !(item.indicator > *own)) return id;
  const double gain = Gain(load.demand, item.indicator) * edge.weight * static_cast<double>(kWhole);
  if (Gift(*own, item.indicator, gain, core_.SeatParts()) < GiftMin()) return id;
  return books_.Add(item.key);
}

bool CapacityGifts::FromNeighbour(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!core_.IsOurs(m) || p.slot < 0) return false;
  SeeLife(p, m.epoch, now);
  return m.epoch == edges_[static_cast<std::size_t>(p.slot)].life && m.to_epoch == core_.life.epoch;
}

void CapacityGifts::OnHave(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!FromNeighbour(p, m, now)) return;
  const auto slot = static_cast<std::size_t>(p.slot);
  const std::optional<CapacityFlight> flight = TakeFlight(edges_[slot].flights, m.sequence);
  if (!flight) return;
  for (const auto& [id, given] : flight->said) {
    LedgerEdge& e = ledgers_.edge(id, slot);
    e.flying = false;
    e.arrived = std::max(e.arrived, given);
    if (e.logged > e.arrived) Queue(id, slot);
  }
}

void CapacityGifts::SeeLife(CapacityPeer& p, std::uint64_t life, BootInstant now) {
  if (life < p.epoch || life == 0) return;
  if (life > p.epoch) {
    // A new life costs a walk through all ledgers, so nobody has more than one an interval.
    if (p.epoch != 0 && now < p.epoch_since + members_.active().interval) return;
    p.epoch = life;
    p.epoch_since = now;
  }
  if (p.slot < 0) return;
  GiftEdge& edge = edges_[static_cast<std::size_t>(p.slot)];
  if (life <= edge.life || life <= edge.former) return;
  if (edge.life != 0) EndLife(static_cast<std::size_t>(p.slot), now);
  edge.life = life;
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) Queue(id, static_cast<std::size_t>(p.slot));
}

void CapacityGifts::EndLife(std::size_t slot, BootInstant now) {
  GiftEdge& edge = edges_[slot];
  core_.life.residue |= !edge.left.empty();
  edge.left.clear();
  edge.left_at = now;
  edge.former = std::exchange(edge.life, 0);
  edge.waiting.clear();
  edge.flights.clear();
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) {
    const LedgerEdge was = ledgers_.Renew(id, slot);
    if (was.given == 0 && was.received == 0) continue;
    edge.left[id] = {was.given, was.received};
    books_.Changed(id);
  }
}

}    // namespace dthrottle
