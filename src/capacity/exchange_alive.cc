// Members, and being alive: beats, leases, lives.
#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {
namespace {

constexpr unsigned kEpochBits = 16;    // of a life's number that count lives within one start

Instant LaterBy(Duration wait, Instant now) {
  return now + wait;
}

}    // namespace

ExchangeState::ExchangeState(CapacityExchange::Options o, CapacitySettings s, CapacityTransport& t, Prng p, Instant now)
    : options(std::move(o)),
      wanted(std::move(s)),
      active(wanted),
      transport(t),
      prng(p),
      started(now),
      witness(Witness::Decode(options.saved).value_or(Witness::Saved()), now),
      epoch(options.incarnation << kEpochBits) {
  DT_CHECK(CheckCapacitySettings(wanted, options.name).has_value());
  DT_CHECK(options.incarnation < std::uint64_t{1} << (64 - kEpochBits));
  reserve = std::min(witness.saved().reserve, ReserveParts(wanted));
  standing.reserve = standing.other = reserve;
  UseSettings();
  sweep_after = kSweepPatience * patience;
  rest = kLostSeatPatience * patience;
  well_at = now;
  next_round =
      now + Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(wanted.interval.count()))));
}

std::uint32_t ExchangeState::MemberOf(std::string_view name) const {
  const auto at = std::ranges::lower_bound(active.members, name);
  DT_CHECK(at != active.members.end() && *at == name);
  return static_cast<std::uint32_t>(at - active.members.begin());
}

void ExchangeState::UseSettings() {
  wanted_digest = DigestOf(wanted);
  patience = std::max(PatienceOf(wanted), PatienceOf(active));
  witness.SetPatience(without.patience ? Duration(-1) : patience);
  wanted_witnesses = WitnessesOf(wanted.members);
  witnesses = WitnessesOf(active.members);
  panel.clear();
  for (auto at = peers.begin(); at != peers.end();) {
    at = IsIn(wanted.members, at->first) || IsIn(active.members, at->first) ? std::next(at) : peers.erase(at);
  }
  for (const auto* members : {&wanted.members, &active.members}) {
    for (const std::string& name : *members) {
      if (!IsSelf(name)) peers.try_emplace(name, name);
    }
  }
  by_name.clear();
  for (auto& [name, peer] : peers) by_name[name] = &peer;
  for (const std::string& name : witnesses) panel.push_back(Find(name));
}

CapacityMessage& ExchangeState::Fresh(CapacityKind kind) {
  out.Clear();
  out.kind = kind;
  out.host = options.name;
  out.generation = generation;
  out.epoch = epoch;
  return out;
}

void ExchangeState::Send(std::string_view to, const std::string& bytes) {
  ++counts.sent;
  counts.sent_bytes += bytes.size();
  transport.Send(to, bytes);
}

void ExchangeState::SendBeats(Instant now) {
  std::set<std::string_view> to(witnesses.begin(), witnesses.end());
  to.insert(wanted_witnesses.begin(), wanted_witnesses.end());
  // Without a generation the others would hear one witness only, the one that begins it.
  if (IsIn(wanted_witnesses, options.name) && !Leased(now)) to.insert(wanted.members.begin(), wanted.members.end());
  for (const Edge& edge : edges) to.insert(edge.peer->name);
  for (const Bond& b : {bond, candidate}) {
    if (b.friend_ != nullptr) to.insert(b.friend_->name);
  }
  for (const ClientLog& client : clients) to.insert(client.host);
  EncodeBeat(now);
  for (const std::string_view name : to) {
    if (IsSelf(name)) {
      OnSelf(now);
    } else {
      Send(name, frame);
    }
  }
}

void ExchangeState::EncodeBeat(Instant now) {
  CapacityMessage& m = Fresh(CapacityKind::kBeat);
  m.sent = now.time_since_epoch().count();
  m.digest = wanted_digest;
  m.binding = BindingToSay();
  m.bound = bond.number;
  m.last = WishesReset(now);
  m.members = seats;
  EncodeCapacity(m, frame);
}

void ExchangeState::OnSelf(Instant now) {
  if (!IsIn(witnesses, options.name)) return;
  if (witness.OnBeat(options.name, generation, epoch, BindingToSay(), now) == Witness::Answer::kGrant) {
    self_until = LaterBy(active.lease, now);
    self_binding = std::max(self_binding, BindingToSay());
  }
  CountGrants();
}

void ExchangeState::OnBeat(Peer& p, const CapacityMessage& m, Instant now) {
  p.digest = m.digest;
  p.generation = m.generation;
  p.wishes = m.last;
  p.seats = m.members;
  if (m.generation < generation && m.digest == active_digest && !commit.empty()) Send(p.name, commit);
  if (m.generation > generation) {
    EncodeBeat(now);
    Send(p.name, frame);
  }
  if (m.generation != generation || !joined()) return;
  SeeLife(p, m.epoch, now);
  for (auto at = clients.begin(); at != clients.end();) {
    const bool same = at->host == p.name && at->life == m.epoch;
    if (same) at->heard = now;
    at = same && at->binding < m.bound ? Close(at) : std::next(at);
  }
  const Witness::Answer answer = witness.OnBeat(p.name, m.generation, m.epoch, m.binding, now);
  if (answer == Witness::Answer::kNothing) return;
  CapacityMessage& reply = Fresh(answer == Witness::Answer::kGrant ? CapacityKind::kGrant : CapacityKind::kDead);
  reply.to_epoch = m.epoch;
  reply.binding = m.binding;
  reply.sent = m.sent;
  Send(p.name);
}

void ExchangeState::OnGrant(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || m.to_epoch != epoch) return;
  const Instant sent(Duration(m.sent));
  if (sent > now) return;
  p.granted_until = std::max(p.granted_until, LaterBy(active.lease, sent));
  p.granted_binding = std::max(p.granted_binding, m.binding);
  CountGrants();
  CommitBond();
}

void ExchangeState::CountGrants() {
  std::vector<Instant> until;
  for (const Peer* p : panel) until.push_back(p == nullptr ? self_until : p->granted_until);
  const auto at = until.begin() + static_cast<std::ptrdiff_t>(Majority(until.size()) - 1);
  std::nth_element(until.begin(), at, until.end(), std::greater<>());
  leased_until = *at;
  UpdateStanding();
}

void ExchangeState::UpdateStanding() {
  standing.reserve = reserve;
  standing.other = joined() ? reserve + seats.Count() * base : reserve;
  standing.valid_until = !joined() || frozen() ? Instant::min() : without.lease ? Instant::max() : leased_until;
}

void ExchangeState::NewLife() {
  ++counts.fenced;
  ++epoch;
  entitled_to = 0;
  seats = MemberBits();
  BeginLedgers();
}

void ExchangeState::BeginLedgers() {
  ledgers.Clear(active.graph.Degree(MemberOf(options.name)));
  log_waiting.clear();
  log_flights.clear();
  share_waiting.clear();
  estates.clear();
  audit.Forget();
  overdrawn = 0;
  unlogged_estate = behind = 0;
  secured = seats;
  bond = candidate = Bond();
  self_until = leased_until = Instant::min();
  self_binding = 0;
  for (auto& [name, peer] : peers) {
    peer.granted_until = Instant::min();
    peer.granted_binding = 0;
  }
  for (Edge& edge : edges) {
    edge.left.clear();
    edge.waiting.clear();
    edge.flights.clear();
  }
  ++standing.serial;
  UpdateStanding();
  for (const auto& [key, demand] : demands) AddLedger(key);
}

}    // namespace dthrottle
