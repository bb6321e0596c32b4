// New generations: who begins them, promises, and joining one.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {
namespace {

constexpr unsigned kGenerationBits = 32;    // of a generation's number that say whose it is
// How far a number may be ahead of those promised here. A host without state must catch up, and a liar must not reach
// the last number.
constexpr std::uint64_t kGenerationsAhead = std::uint64_t{1} << 20;
constexpr int kCompanyPatience = 1;     // in such times: while it changes nobody is blamed
constexpr int kRestFactor = 16;         // the longest rest between generations that were wished for
constexpr int kAttemptPatience = 4;     // in such times; then it is tried under another number
constexpr int kSweepsPatience = 640;    // the most, in such times, between generations that make room

// The equal share, less reserve, of each of the `here` members that take part, of `members`.
Parts BaseOf(std::size_t members, std::size_t here, Parts reserve, Parts aside) {
  const Parts kept = here * reserve + (members - here) * aside;
  return kept < kWhole ? (kWhole - kept) / here : 0;
}

}    // namespace

bool ExchangeState::WishesReset(Instant now) const {
  const bool stuck = now - well_at > patience;
  const bool lost = residue || std::ranges::any_of(edges, [&](const Edge& e) {
                      return !e.left.empty() && now - e.left_at > kLostSeatPatience * patience;
                    });
  const bool full = ledgers.size() > wanted.tags_max / 4 * 3 && now - joined_at > sweep_after;
  const bool overdraft = overdrawn > 0 && now - overdrawn_at > kLostSeatPatience * patience;
  return stuck || (joined() && (lost || full || overdraft));
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
    if (const Peer& p = peers.at(name); Up(p, now) && !p.trust.PassedOver(now)) return false;
  }
  return false;
}

ExchangeState::Peer* ExchangeState::Leader(Instant now) {
  for (const std::string& name : wanted_witnesses) {
    if (IsSelf(name)) continue;
    if (Peer& p = peers.at(name); Up(p, now) && !p.trust.PassedOver(now)) return &p;
  }
  return nullptr;
}

void ExchangeState::JudgeLeader(Instant now) {
  if (Leased(now) || !AllWantIt(now)) well_at = now;
  Peer* const leader = Leader(now);
  // Nobody can do better where too many are silent or have other settings.
  if (leader == nullptr || !AllWantIt(now, leader)) return;
  // Where hosts come and go that is the trouble.
  MemberBits there;
  for (std::size_t i = 0; i < wanted.members.size(); ++i) {
    const Peer* const p = Find(wanted.members[i]);
    if (p == nullptr || (p != leader && Up(*p, now))) there.Add(i);
  }
  if (std::exchange(company, there) != there) company_since = now;
  if (now - company_since <= kCompanyPatience * patience) return;
  // Only witnesses hear everybody, and know what is due.
  const bool due = IsIn(wanted_witnesses, options.name) && HasReason(kRestFactor * kLostSeatPatience * patience, now);
  // The first that leads in another's place has twice the time: it begins when the others have passed over that one.
  const Duration round = StandsIn(now) ? active.interval / 2 : active.interval;
  if (Leased(now) && !due) return leader->trust.Forgive(round);
  hurry |= leader->trust.Blame(round, patience, now);
  if (Leader(now) != nullptr) return;
  for (auto& [name, peer] : peers) peer.trust.TrustAgain();    // it is not one of them
}

bool ExchangeState::StandsIn(Instant now) const {
  return std::ranges::any_of(peers, [&](const auto& p) { return p.second.trust.PassedOver(now); });
}

std::size_t ExchangeState::CountUp(const std::vector<std::string>& names, Instant now, const Peer* without_peer) const {
  std::size_t up = 0;
  for (const std::string& name : names) {
    const Peer* const p = IsSelf(name) ? nullptr : &peers.at(name);
    up += p == nullptr || (p != without_peer && Up(*p, now));
  }
  return up;
}

void ExchangeState::Coordinate(Instant now) {
  if (!IsCoordinator(now)) {
    attempt.reset();
    return;
  }
  if (attempt && now - attempt->since > kAttemptPatience * patience) attempt.reset();
  if (!attempt && !HasReason(hurry ? Duration() : rest, now)) return;
  if (!attempt) Begin(now);
  if (!attempt) return;
  for (const std::string& name : wanted.members) {
    if (IsSelf(name)) continue;
    CapacityMessage& m = Fresh(CapacityKind::kPrepare);
    m.generation = attempt->generation;
    m.digest = wanted_digest;
    Send(name);
  }
  if (Promise(attempt->generation)) attempt->promised[options.name] = MakePromised(now);
  TryCommit(now);
}

bool ExchangeState::HasReason(Duration rested, Instant now) {
  if (!AllWantIt(now)) return false;
  if (!joined() || active_digest != wanted_digest) return true;
  MemberBits held = seats;
  bool wished = WishesReset(now);
  for (const auto& [name, peer] : peers) {
    if (!Up(peer, now)) continue;
    wished |= peer.wishes;    // of another generation: perhaps it has promised one that never began
    if (peer.generation == generation) held.Add(peer.seats);
  }
  bool whole = true;
  for (std::size_t i = 0; i < active.members.size(); ++i) whole &= !participants.Has(i) || held.Has(i);
  if (whole) whole_at = now;
  // More was set aside for somebody who was not there than has to be.
  wished |= aside > reserve && CountUp(wanted.members, now) == wanted.members.size();
  // A new generation costs nothing where there is no lease to lose.
  return now - well_at > patience ||
         (now - joined_at > rested && (wished || now - whole_at > kLostSeatPatience * patience));
}

bool ExchangeState::AllWantIt(Instant now, const Peer* without_peer) const {
  if (CountUp(wanted_witnesses, now, without_peer) < Majority(wanted_witnesses.size())) return false;
  if (CountUp(witnesses, now, without_peer) < Majority(witnesses.size())) return false;
  bool elsewhere = false;
  for (const std::string& name : wanted.members) {
    if (IsSelf(name)) continue;
    const Peer& p = peers.at(name);
    if (!Up(p, now)) {
      if (now - started <= patience) return false;
      continue;
    }
    if (&p == without_peer || p.trust.PassedOver(now)) continue;
    if (p.digest != wanted_digest && !frozen()) return false;
    elsewhere |= p.generation > generation;
  }
  return !elsewhere || now - started > 2 * patience;    // it will be told of a generation that there is
}

void ExchangeState::Begin(Instant now) {
  std::uint64_t highest = std::max({witness.promised(), generation, refused});
  for (const auto& [name, peer] : peers) {
    if (IsAhead(peer.generation)) highest = std::max(highest, peer.generation);
  }
  const std::uint64_t whose = NameNumber(options.name) >> kGenerationBits;
  attempt = Attempt{((highest >> kGenerationBits) + 1) << kGenerationBits | whose, now, {}};
}

bool ExchangeState::Promise(std::uint64_t number) {
  if (number < witness.promised() || number <= generation || !IsAhead(number)) return false;
  if (number == witness.promised()) return acked == number;
  witness.Promise(number);
  Save();
  acked = entitled_to = number;
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
  if (!Leads(p, now)) return;
  const std::uint64_t number = m.generation;
  const bool refuse = number < witness.promised();
  if (!refuse && !Promise(number)) return;
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
    if (!IsAhead(m.generation)) return;
    refused = std::max(refused, m.generation);
    // A member that refuses again and again does not keep the others from what they have promised.
    if (p.refused && now - *p.refused <= kAttemptPatience * patience) return;
    p.refused = now;
    attempt.reset();
    return;
  }
  if (m.generation < attempt->generation || m.aside > kWhole) return;
  if (m.former == generation && !m.witnesses.empty() && m.witnesses != witnesses) return;
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
  if (now - attempt->since > patience) attempt->ForgetUnconfirmed(wanted.members, options.name);
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
    // Whatever a member says, what is kept for the others leaves everybody here an equal share.
    const Parts most = std::max({kWhole / n, reserve, aside});
    for (const auto& [name, promised] : attempt->promised) m.aside = std::max(m.aside, std::min(promised.aside, most));
  }
  m.base = BaseOf(n, here, m.reserve, m.aside);
  attempt.reset();
  const CapacityMessage agreed = m;
  Join(agreed, now);
  for (const std::string& name : wanted.members) {
    if (!IsSelf(name)) Send(name, commit);
  }
}

bool ExchangeState::IsUnasked(const CapacityMessage& m, Instant now) const {
  if (m.generation == acked || !joined() || without.promises) return false;
  const auto self =
      static_cast<std::size_t>(std::ranges::lower_bound(wanted.members, options.name) - wanted.members.begin());
  return Leased(now) || (m.generation > witness.promised() && m.members.Has(self));
}

bool ExchangeState::IsDivision(const CapacityMessage& m) const {
  const std::size_t n = wanted.members.size(), here = m.members.Count();
  for (std::size_t i = n; i < kMembersMax; ++i) {
    if (m.members.Has(i)) return false;
  }
  return here > 0 && m.reserve == ReserveParts(wanted) && m.aside >= m.reserve && m.aside <= kWhole &&
         m.base == BaseOf(n, here, m.reserve, m.aside);
}

bool ExchangeState::IsAhead(std::uint64_t number) const {
  const std::uint64_t known = std::max(witness.promised(), generation);
  return number >> kGenerationBits <= (known >> kGenerationBits) + kGenerationsAhead;
}

bool ExchangeState::Leads(const Peer& p, Instant now) const {
  for (const std::string& name : wanted_witnesses) {
    if (name == p.name) return !p.trust.PassedOver(now);
    if (IsSelf(name)) continue;
    const Peer& earlier = peers.at(name);
    if (earlier.trust.PassedOver(now)) continue;
    if (Up(earlier, now) || now - started <= patience) return false;    // perhaps not heard yet
  }
  return false;
}

void ExchangeState::OnCommit(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.digest != wanted_digest) {
    ++counts.other_settings;
    return;
  }
  if (m.generation <= generation || m.generation < acked || !IsAhead(m.generation)) return;
  if (!Leads(p, now) || !IsDivision(m)) return;
  if (IsUnasked(m, now)) return;
  const CapacityMessage agreed = m;
  const bool stopped = frozen();
  Join(agreed, now);
  // It stopped for a part of the new generation.
  if (stopped && seats.Count() == 0) hurry |= p.trust.Blame(LeaderTrust::kPatience / 2 * patience, patience, now);
}

void ExchangeState::Join(const CapacityMessage& m, Instant now) {
  // Generations that follow each other closely under the same settings do not help, whoever wishes for them.
  const bool again = joined() && well_at > joined_at && active_digest == wanted_digest && now - joined_at < 2 * rest;
  rest = again ? std::min(2 * rest, kRestFactor * kLostSeatPatience * patience) : kLostSeatPatience * patience;
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
  residue = hurry = false;
  swept = ledgers.size();
  joined_at = whole_at = well_at = now;
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
