#include "capacity/capacity_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "capacity/exchange_state.h"

namespace dthrottle {

CapacityExchange::CapacityExchange(Options options, CapacitySettings settings, CapacityTransport& transport, Prng prng,
                                   BootInstant now)
    : state_(std::make_unique<ExchangeState>(options, settings, transport, prng, now)) {
  if (options.life.empty()) return;
  resumed_ = state_->Resume(options.life, now);
  if (!resumed_) {
    state_ = std::make_unique<ExchangeState>(std::move(options), std::move(settings), transport, prng, now);
  }
}

CapacityExchange::~CapacityExchange() = default;

std::string CapacityExchange::Life() const {
  return state_->Life();
}

void CapacityExchange::SetSettings(CapacitySettings settings) {
  state_->SetSettings(std::move(settings));
}

void CapacityExchange::SetDemand(std::span<const TagDemand> demands) {
  state_->books.SetDemand(demands);
}

void CapacityExchange::OnMessage(std::string_view proven, std::string_view frame, BootInstant now) {
  CapacityCounts& counts = state_->core.counts;
  ++counts.received;
  counts.received_bytes += frame.size();
  switch (DecodeCapacity(frame, state_->in)) {
    case CapacityFault::kNone:
      return state_->OnMessage(proven, now);
    case CapacityFault::kVersion:
      ++counts.other_version;
      return;
    case CapacityFault::kJunk:
      ++counts.junk;
      return;
  }
}

BootInstant CapacityExchange::Tick(BootInstant now) {
  return state_->Tick(now);
}

CapacityStanding CapacityExchange::standing() const {
  return state_->core.standing;
}

bool CapacityExchange::TakeShares(std::vector<TagShare>& changed, std::size_t most) {
  return state_->books.TakeShares(changed, most);
}

CapacityCounts CapacityExchange::Counts(BootInstant now) const {
  const CapacityCore& core = state_->core;
  CapacityCounts counts = core.counts;
  counts.tags = state_->books.ledgers().size();
  counts.generation = core.generation.number;
  counts.epoch = core.life.epoch;
  counts.leased = core.Leased(now);
  counts.seats = core.life.seats.Count();
  return counts;
}

std::vector<CapacityMember> CapacityExchange::Members(BootInstant now) const {
  const ExchangeState& s = *state_;
  std::vector<CapacityMember> all;
  for (const auto& [name, peer] : s.members.peers()) {
    CapacityMember& m = all.emplace_back();
    m.name = name;
    m.state = !peer.heard ? MemberState::kUnknown : s.members.Up(peer, now) ? MemberState::kUp : MemberState::kSilent;
    m.last_heard = peer.heard ? now - *peer.heard : Duration(-1);
    m.neighbour = peer.slot >= 0;
    if (m.neighbour) m.weight = s.gifts.edges()[static_cast<std::size_t>(peer.slot)].weight;
    m.witness = IsIn(s.members.witnesses(), name);
    m.best_friend = s.core.bonds.bond.friend_ == &peer;
    m.differs = peer.digest != 0 && peer.digest != s.members.wanted_digest();
  }
  return all;
}

std::optional<CapacityTag> CapacityExchange::Inspect(const CapacityKey& key) const {
  const ExchangeState& s = *state_;
  const Ledgers& ledgers = s.books.ledgers();
  const std::uint32_t id = ledgers.Find(key);
  if (id == KeyIndex::kNone) return std::nullopt;
  const Ledger& ledger = ledgers[id];
  CapacityTag tag{key, s.books.ShareOf(ledger), ledger.demand, s.books.IndicatorOf(ledger), {}};
  for (std::size_t slot = 0; slot < s.gifts.edges().size(); ++slot) {
    const LedgerEdge& e = ledgers.edge(id, slot);
    CapacityEdge& edge = tag.edges.emplace_back();
    edge.neighbour = s.gifts.edges()[slot].peer->name;
    if (!std::isnan(e.theirs)) edge.indicator = static_cast<double>(e.theirs);
    edge.given = e.given;
    edge.received = e.received;
    edge.under_way = e.given - e.arrived;
  }
  return tag;
}

CapacitySum CapacityExchange::Sum(const CapacityKey& key, BootInstant now) {
  return state_->audits.Sum(key, now);
}

}    // namespace dthrottle
