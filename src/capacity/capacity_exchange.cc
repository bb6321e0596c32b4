#include "capacity/capacity_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {

Instant ExchangeState::Tick(Instant now) {
  if (now < next_round) return next_round;
  next_round = std::max(next_round + active.interval, now + active.interval / 2);
  if (std::exchange(was_leased, Leased(now)) && !was_leased) ++counts.lapses;
  SayAgain(now);
  SendBeats(now);
  WatchClients(now);
  SendSettlings();
  SecureEstates();
  JudgeSweep(now);
  Bind(now);
  CommitBond();
  if (joined() && !frozen()) Round(now);
  FlushLogs(now);
  FlushGifts(now);
  AskShares(now);
  Audit(now);
  JudgeLeader(now);
  Coordinate(now);
  return next_round;
}

CapacityExchange::CapacityExchange(Options options, CapacitySettings settings, CapacityTransport& transport, Prng prng,
                                   Instant now)
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

void CapacityExchange::SetSettings(CapacitySettings settings, Instant) {
  ExchangeState& s = *state_;
  DT_CHECK(CheckCapacitySettings(settings, s.options.name).has_value());
  s.wanted = std::move(settings);
  s.attempt.reset();
  s.UseSettings();
  if (s.wanted_digest != s.active_digest) return;
  // What is this host's own business holds at once.
  s.active = s.wanted;
  s.UpdateStanding();
}

void CapacityExchange::SetDemand(std::span<const TagDemand> demands, Instant) {
  ExchangeState& s = *state_;
  for (const TagDemand& d : demands) {
    DT_CHECK(d.capacity > 0 && d.demand >= 0);
    const double part = d.demand / d.capacity;
    const ExchangeState::Asked asked{part, d.pinned, d.pin};
    if (part <= 0 && d.pinned == 0) {
      s.demands.erase(d.key);
    } else if (s.demands.size() < s.wanted.tags_max || s.demands.contains(d.key)) {
      s.demands[d.key] = asked;
    } else {
      ++s.counts.tags_refused;
      continue;
    }
    std::uint32_t id = s.ledgers.Find(d.key);
    if (id == KeyIndex::kNone && (part > 0 || d.pinned > 0) && s.joined()) id = s.AddLedger(d.key);
    if (id != KeyIndex::kNone) s.Want(id, asked);
  }
}

void CapacityExchange::OnMessage(std::string_view proven, std::string_view frame, Instant now) {
  ExchangeState& s = *state_;
  ++s.counts.received;
  s.counts.received_bytes += frame.size();
  switch (DecodeCapacity(frame, s.in)) {
    case CapacityFault::kNone:
      break;
    case CapacityFault::kVersion:
      ++s.counts.other_version;
      return;
    case CapacityFault::kJunk:
      ++s.counts.junk;
      return;
  }
  ExchangeState::Peer* const p = s.Find(s.in.host);
  if (p == nullptr || (!proven.empty() && proven != s.in.host)) {
    ++s.counts.strangers;
    return;
  }
  p->heard = now;
  const CapacityMessage& m = s.in;
  switch (m.kind) {
    case CapacityKind::kBeat:
      return s.OnBeat(*p, m, now);
    case CapacityKind::kGrant:
      return s.OnGrant(*p, m, now);
    case CapacityKind::kDead:
      return s.OnDead(*p, m, now);
    case CapacityKind::kLog:
      return s.OnLog(*p, m, now);
    case CapacityKind::kGifts:
      return s.OnGifts(*p, m, now);
    case CapacityKind::kSettle:
      return s.OnSettle(*p, m, now);
    case CapacityKind::kHave:
      return s.OnHave(*p, m, now);
    case CapacityKind::kFence:
      return s.OnFence(*p, m, now);
    case CapacityKind::kFenced:
      return s.OnFenced(*p, m, now);
    case CapacityKind::kPrepare:
      return s.OnPrepare(*p, m, now);
    case CapacityKind::kPromise:
      return s.OnPromise(*p, m, now);
    case CapacityKind::kCommit:
      return s.OnCommit(*p, m, now);
    case CapacityKind::kAsk:
      return s.OnAsk(*p, m, now);
    case CapacityKind::kShare:
      return s.OnShare(*p, m);
  }
}

Instant CapacityExchange::Tick(Instant now) {
  return state_->Tick(now);
}

CapacityStanding CapacityExchange::standing() const {
  return state_->standing;
}

bool CapacityExchange::TakeShares(std::vector<TagShare>& changed, std::size_t most) {
  ExchangeState& s = *state_;
  const std::size_t n = std::min(most, s.share_waiting.size());
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t id = s.share_waiting[s.share_waiting.size() - 1 - i];
    s.ledgers[id].share_queued = false;
    const Ledger& ledger = s.ledgers[id];
    changed.push_back({ledger.key, s.ShareOf(ledger), static_cast<Parts>(ledger.blocked), ledger.pin});
  }
  s.share_waiting.resize(s.share_waiting.size() - n);
  return !s.share_waiting.empty();
}

CapacityCounts CapacityExchange::Counts(Instant now) const {
  CapacityCounts counts = state_->counts;
  counts.tags = state_->ledgers.size();
  counts.generation = state_->generation;
  counts.epoch = state_->epoch;
  counts.leased = state_->Leased(now);
  counts.seats = state_->seats.Count();
  return counts;
}

std::vector<CapacityMember> CapacityExchange::Members(Instant now) const {
  const ExchangeState& s = *state_;
  std::vector<CapacityMember> members;
  for (const auto& [name, peer] : s.peers) {
    CapacityMember& m = members.emplace_back();
    m.name = name;
    m.state = !peer.heard ? MemberState::kUnknown : s.Up(peer, now) ? MemberState::kUp : MemberState::kSilent;
    m.last_heard = peer.heard ? now - *peer.heard : Duration(-1);
    m.neighbour = peer.slot >= 0;
    if (m.neighbour) m.weight = s.edges[static_cast<std::size_t>(peer.slot)].weight;
    m.witness = IsIn(s.witnesses, name);
    m.best_friend = s.bond.friend_ == &peer;
    m.differs = peer.digest != 0 && peer.digest != s.wanted_digest;
  }
  return members;
}

std::optional<CapacityTag> CapacityExchange::Inspect(const CapacityKey& key) const {
  const ExchangeState& s = *state_;
  const std::uint32_t id = s.ledgers.Find(key);
  if (id == KeyIndex::kNone) return std::nullopt;
  const Ledger& ledger = s.ledgers[id];
  CapacityTag tag{key, s.ShareOf(ledger), ledger.demand, s.IndicatorOf(s.LoadOf(ledger.demand, ledger.available)), {}};
  for (std::size_t slot = 0; slot < s.edges.size(); ++slot) {
    const LedgerEdge& e = s.ledgers.edge(id, slot);
    CapacityEdge& edge = tag.edges.emplace_back();
    edge.neighbour = s.edges[slot].peer->name;
    if (!std::isnan(e.theirs)) edge.indicator = static_cast<double>(e.theirs);
    edge.given = e.given;
    edge.received = e.received;
    edge.under_way = e.given - e.arrived;
  }
  return tag;
}

CapacitySum CapacityExchange::Sum(const CapacityKey& key, Instant now) {
  ExchangeState& s = *state_;
  s.share_sums.Look(key, now);
  return s.share_sums.Sum(key, s.Held(key, now), now);
}

std::vector<CapacityTag> CapacityExchange::Tags(std::size_t most) const {
  const ExchangeState& s = *state_;
  std::vector<std::uint32_t> ids(s.ledgers.size());
  for (std::uint32_t id = 0; id < ids.size(); ++id) ids[id] = id;
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(most, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(),
                    [&](std::uint32_t a, std::uint32_t b) { return s.ledgers[a].demand > s.ledgers[b].demand; });
  std::vector<CapacityTag> tags;
  for (auto at = ids.begin(); at != end; ++at) tags.push_back(*Inspect(s.ledgers[*at].key));
  return tags;
}

}    // namespace dthrottle
