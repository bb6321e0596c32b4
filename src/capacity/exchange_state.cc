#include "capacity/exchange_state.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/state.h"

namespace dthrottle {
namespace {

constexpr std::uint32_t kLifeVersion = 3;

}    // namespace

ExchangeState::ExchangeState(const CapacityExchange::Options& options, CapacitySettings settings,
                             CapacityTransport& transport, Prng prng, BootInstant now)
    : core(options, std::move(settings), transport, now), generations(core, books, gifts, audits, now) {
  const auto interval = static_cast<std::uint64_t>(members.wanted().interval.count());
  next_round_ = now + Duration(static_cast<Duration::rep>(prng.Below(interval)));
}

void ExchangeState::SetSettings(CapacitySettings settings) {
  members.Want(std::move(settings));
  generations.GiveUp();
  core.UseSettings();
  if (members.settled()) core.UpdateStanding();
}

BootInstant ExchangeState::Tick(BootInstant now) {
  if (now < next_round_) return next_round_;
  const Duration interval = members.active().interval;
  next_round_ = std::max(next_round_ + interval, now + interval / 2);
  if (std::exchange(was_leased_, core.Leased(now)) && !was_leased_) ++core.counts.lapses;
  gifts.SayAgain(now);
  logging.SayAgain(now);
  SendBeats(now);
  heir.WatchClients(now);
  heir.SendSettlings();
  heir.SecureEstates();
  generations.JudgeSweep(now);
  logging.Bind(now);
  logging.Commit();
  if (core.generation.running()) gifts.Round(now);
  logging.Flush(now);
  gifts.Flush(now);
  audits.AskShares(now);
  audits.Audit(now);
  generations.JudgeLeader(now);
  Conclude(generations.Coordinate(now), now);
  return next_round_;
}

void ExchangeState::OnMessage(std::string_view proven, BootInstant now) {
  CapacityPeer* const p = members.Find(in.host);
  if (p == nullptr || (!proven.empty() && proven != in.host)) {
    ++core.counts.strangers;
    return;
  }
  p->heard = now;
  Dispatch(*p, now);
}

void ExchangeState::Dispatch(CapacityPeer& p, BootInstant now) {
  switch (in.kind) {
    case CapacityKind::kBeat:
      return OnBeat(p, in, now);
    case CapacityKind::kGrant:
      return OnGrant(p, in, now);
    case CapacityKind::kDead:
      return OnDead(p, in, now);
    case CapacityKind::kLog:
      return heir.OnLog(p, in, now);
    case CapacityKind::kGifts:
      return gifts.OnGifts(p, in, now);
    case CapacityKind::kSettle:
      return heir.OnSettle(p, in, now);
    case CapacityKind::kHave:
      return OnHave(p, in, now);
    case CapacityKind::kFence:
      return heir.OnFence(p, in, now);
    case CapacityKind::kFenced:
      return heir.OnFenced(p, in, now);
    case CapacityKind::kPrepare:
      return generations.OnPrepare(p, in, now);
    case CapacityKind::kPromise:
      return Conclude(generations.OnPromise(p, in, now), now);
    case CapacityKind::kCommit:
      return OnCommit(p, in, now);
    case CapacityKind::kAsk:
      return audits.OnAsk(p, in, now);
    case CapacityKind::kShare:
      return audits.OnShare(p, in);
  }
}

void ExchangeState::SendBeats(BootInstant now) {
  std::set<std::string_view> to(members.witnesses().begin(), members.witnesses().end());
  to.insert(members.wanted_witnesses().begin(), members.wanted_witnesses().end());
  // Without a generation the others would hear one witness only, the one that begins it.
  if (IsIn(members.wanted_witnesses(), members.self()) && !core.Leased(now)) {
    to.insert(members.wanted().members.begin(), members.wanted().members.end());
  }
  for (const GiftEdge& edge : gifts.edges()) to.insert(edge.peer->name);
  for (const CapacityBond& b : {core.bonds.bond, core.bonds.candidate}) {
    if (b.friend_ != nullptr) to.insert(b.friend_->name);
  }
  for (const ClientLog& client : heir.clients()) to.insert(client.host);
  const std::string& beat = Beat(now);
  for (const std::string_view name : to) {
    if (members.IsSelf(name)) {
      OnSelf(now);
    } else {
      core.Send(name, beat);
    }
  }
}

const std::string& ExchangeState::Beat(BootInstant now) {
  CapacityMessage& m = core.Fresh(CapacityKind::kBeat);
  m.sent = now.time_since_epoch().count();
  m.digest = members.wanted_digest();
  m.binding = core.bonds.NumberToSay();
  m.bound = core.bonds.bond.number;
  m.last = generations.WishesReset(now);
  m.members = core.life.seats;
  return core.Encoded();
}

void ExchangeState::OnSelf(BootInstant now) {
  if (!IsIn(members.witnesses(), members.self())) return;
  const std::uint64_t binding = core.bonds.NumberToSay();
  if (core.witness.OnBeat(members.self(), core.generation.number, core.life.epoch, binding, now) ==
      Witness::Answer::kGrant) {
    core.life.self_until = now + members.active().lease;
    core.life.self_binding = std::max(core.life.self_binding, binding);
  }
  CountGrants();
}

void ExchangeState::OnBeat(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  p.digest = m.digest;
  p.generation = m.generation;
  p.wishes = m.last;
  p.seats = m.members;
  const std::string& commit = generations.commit();
  if (m.generation < core.generation.number && m.digest == members.active_digest() && !commit.empty()) {
    core.Send(p.name, commit);
  }
  if (m.generation > core.generation.number) core.Send(p.name, Beat(now));
  if (!core.IsOurs(m)) return;
  gifts.SeeLife(p, m.epoch, now);
  heir.OnBeat(p, m, now);
  const Witness::Answer answer = core.witness.OnBeat(p.name, m.generation, m.epoch, m.binding, now);
  if (answer == Witness::Answer::kNothing) return;
  CapacityMessage& reply = core.Fresh(answer == Witness::Answer::kGrant ? CapacityKind::kGrant : CapacityKind::kDead);
  reply.to_epoch = m.epoch;
  reply.binding = m.binding;
  reply.sent = m.sent;
  core.Send(p.name);
}

void ExchangeState::OnGrant(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.generation != core.generation.number || m.to_epoch != core.life.epoch) return;
  const BootInstant sent(Duration(m.sent));
  if (sent > now) return;
  p.granted_until = std::max(p.granted_until, sent + members.active().lease);
  p.granted_binding = std::max(p.granted_binding, m.binding);
  CountGrants();
  logging.Commit();
}

void ExchangeState::OnDead(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!IsIn(members.witnesses(), p.name)) return;
  if (core.IsOurs(m) && m.to_epoch == core.life.epoch && now >= core.life.leased_until) NewLife();
}

void ExchangeState::OnHave(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.generation != core.generation.number || m.to_epoch != core.life.epoch) return;
  switch (CapacityKind{static_cast<std::uint8_t>(m.answered)}) {
    case CapacityKind::kGifts:
      return gifts.OnHave(p, m, now);
    case CapacityKind::kLog:
      return OnHaveLog(p, m, now);
    case CapacityKind::kSettle:
      return heir.OnHaveSettle(p, m);
    default:
      ++core.counts.junk;
  }
}

void ExchangeState::OnHaveLog(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!logging.OnHave(p, m)) return;
  if (logging.Completes()) {
    SendBeats(now);    // so that witnesses learn of it at once
    logging.Commit();
  }
  if (logging.urgent()) logging.Flush(now);    // the rest waits for the round, to be logged once
  gifts.Flush(now);
}

void ExchangeState::OnCommit(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!generations.Accepts(p, m, now)) return;
  const bool stopped = core.generation.frozen();
  Join(m, now);
  if (stopped && core.life.seats.Count() == 0) generations.BlameFor(p, now);
}

void ExchangeState::CountGrants() {
  std::vector<BootInstant> until;
  for (const std::string& name : members.witnesses()) {
    until.push_back(members.IsSelf(name) ? core.life.self_until : members.peer(name).granted_until);
  }
  const auto at = until.begin() + static_cast<std::ptrdiff_t>(Majority(until.size()) - 1);
  std::nth_element(until.begin(), at, until.end(), std::greater<>());
  core.life.leased_until = *at;
  core.UpdateStanding();
}

void ExchangeState::NewLife() {
  ++core.counts.fenced;
  ++core.life.epoch;
  core.generation.entitled_to = 0;
  core.generation.kept_until = BootInstant::min();
  core.life.seats = MemberBits();
  BeginLedgers();
}

void ExchangeState::BeginLedgers() {
  CapacityLife& life = core.life;
  life.secured = life.seats;
  life.self_until = life.leased_until = BootInstant::min();
  life.self_binding = 0;
  for (auto& [name, peer] : members.peers()) {
    peer.granted_until = BootInstant::min();
    peer.granted_binding = 0;
  }
  ++core.standing.serial;
  core.UpdateStanding();
  heir.Begin();
  audits.Begin();
  logging.Begin();
  gifts.Begin();
  books.Begin();
}

void ExchangeState::Conclude(const std::optional<CapacityMessage>& agreed, BootInstant now) {
  if (!agreed) return;
  Join(*agreed, now);
  for (const std::string& name : members.wanted().members) {
    if (!members.IsSelf(name)) core.Send(name, generations.commit());
  }
}

void ExchangeState::Join(const CapacityMessage& m, BootInstant now) {
  generations.Enter(m, now);
  heir.Forget();
  audits.Forget();
  gifts.MakeEdges();
  BeginLedgers();
  SendBeats(now);
}

// ---- Over a restart: a life that goes on in another program, after an upgrade or a restart that is soon over ----
//
// For the other hosts it is a pause. What this host holds it holds no longer than its lease says, and a witness that
// has called the life over says so at the first beat, as after a pause of any other kind. So whatever of a life is
// written must be read once at the most, and by the clock of the same boot: that is for the caller to see to.
//
// Frames that were on their way are forgotten: what was said in them is queued again, and sums only grow. So is an
// attempt at a new generation, which is made again.

void ExchangeState::Fields(auto& state, auto& self) {
  state(self.members, self.core.generation, self.generations, self.core.life, self.was_leased_,
        self.core.standing.serial, self.books, self.gifts, self.logging, self.heir, self.core.sequence,
        self.core.witness);
}

std::string ExchangeState::Life() const {
  if (!core.generation.joined()) return {};
  StateWriter state;
  state(kLifeVersion, members.self(), members.active_digest());
  Fields(state, *this);
  return state.Take();
}

bool ExchangeState::Resume(std::string_view life, BootInstant now) {
  StateReader state(life);
  std::uint32_t version = 0;
  std::string name;
  std::uint64_t digest = 0;
  state(version, name, digest);
  // Under other settings there would be other members, edges and seats.
  if (!state.ok() || version != kLifeVersion || name != members.self() || digest != members.wanted_digest()) {
    return false;
  }
  members.Adopt();
  core.UseSettings();
  gifts.MakeEdges();
  books.ledgers().Clear(gifts.edges().size());
  Fields(state, *this);
  if (!state.ok() || !state.at_end() || core.witness.promised() < core.generation.number) return false;
  // Nobody is silent because this host was away.
  members.Resume(now);
  generations.Resume(now);
  core.witness.Resume(now);
  heir.Resume(now);
  core.UpdateStanding();
  return true;
}

}    // namespace dthrottle
