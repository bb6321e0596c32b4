#include "capacity/exchange_heir.h"

#include <algorithm>
#include <utility>

namespace dthrottle {
namespace {

constexpr std::size_t kClientsMax = kDegreeMax;    // logs kept for others
constexpr std::size_t kLogsMax = 4;                // of one of them: of several lives, or bonds
constexpr int kSettleTriesMax = 200;               // intervals

}    // namespace

void CapacityHeir::Forget() {
  clients_.clear();
  closed_.clear();
  settlings_.clear();
}

bool CapacityHeir::Possible() const {
  return std::ranges::all_of(clients_,
                             [this](const ClientLog& log) {
                               return IsIn(members_.active().members, log.host) &&
                                      log.degree() == members_.active().graph.Degree(members_.NumberOf(log.host));
                             }) &&
         std::ranges::all_of(settlings_, [this](const Settling& s) { return members_.peers().contains(s.to); });
}

void CapacityHeir::OnLog(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!core_.IsOurs(m) || m.to_epoch != core_.life.epoch || m.binding == 0) return;
  if (!IsIn(members_.active().members, p.name)) return;
  gifts_.SeeLife(p, m.epoch, now);
  if (m.degree != members_.active().graph.Degree(members_.NumberOf(p.name))) {
    ++core_.counts.junk;
    return;
  }
  ClientLog* const log = LogFor(p, m, now);
  if (log == nullptr) return;
  log->heard = now;
  if (log->Take(m, kRecordsFactor * members_.wanted().tags_max)) core_.Acknowledge(p, m);
}

ClientLog* CapacityHeir::LogFor(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  const std::pair said(m.epoch, m.binding);
  ClientLog* log = nullptr;
  std::size_t logs = 0;
  for (ClientLog& c : clients_) {
    if (c.host != p.name) continue;
    ++logs;
    const std::pair kept(c.life, c.binding);
    if (kept > said) return nullptr;
    if (kept == said) log = &c;
  }
  if (log != nullptr) return log;
  if (m.epoch != p.epoch || clients_.size() >= kClientsMax || logs >= kLogsMax) return nullptr;
  if (const auto at = closed_.find(p.name); at != closed_.end() && said <= at->second) return nullptr;
  return &clients_.emplace_back(p.name, m.epoch, m.binding, m.degree, now);
}

void CapacityHeir::OnBeat(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  for (auto at = clients_.begin(); at != clients_.end();) {
    const bool same = at->host == p.name && at->life == m.epoch;
    if (same) at->heard = now;
    at = same && at->binding < m.bound ? Close(at) : std::next(at);
  }
}

CapacityHeir::Log CapacityHeir::Close(Log log) {
  auto& last = closed_[log->host];
  last = std::max(last, std::pair(log->life, log->binding));
  return clients_.erase(log);
}

void CapacityHeir::WatchClients(BootInstant now) {
  for (auto at = clients_.begin(); at != clients_.end();) {
    const CapacityPeer& p = members_.peer(at->host);
    if (p.epoch > at->life || now - at->heard > members_.patience()) AskFence(*at, now);
    at = Settle(*at, now) ? Close(at) : std::next(at);
  }
}

void CapacityHeir::AskFence(ClientLog& log, BootInstant now) {
  for (const std::string& name : members_.witnesses()) {
    if (log.fenced.contains(name)) continue;
    if (members_.IsSelf(name)) {
      if (const auto binding = Fence(log.host, log.life, now)) log.fenced[name] = *binding;
      continue;
    }
    AskFence(log.host, log.life, name);
  }
}

void CapacityHeir::AskFence(std::string_view host, std::uint64_t life, std::string_view witness) {
  CapacityMessage& m = core_.Fresh(CapacityKind::kFence);
  m.member = host;
  m.life = life;
  core_.Send(witness);
}

std::optional<std::uint64_t> CapacityHeir::Fence(std::string_view host, std::uint64_t life, BootInstant now) {
  bool changed = false;
  const std::optional<std::uint64_t> binding = core_.witness.OnFence(host, core_.generation.number, life, changed, now);
  if (changed) core_.Save();
  return binding;
}

void CapacityHeir::OnFence(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!core_.IsOurs(m) || !IsIn(members_.active().members, m.member)) return;
  const std::string dead = m.member;
  const std::uint64_t life = m.life;
  const std::optional<std::uint64_t> binding = Fence(dead, life, now);
  if (!binding) return;
  CapacityMessage& reply = core_.Fresh(CapacityKind::kFenced);
  reply.member = dead;
  reply.life = life;
  reply.binding = *binding;
  core_.Send(p.name);
}

void CapacityHeir::OnFenced(const CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (!core_.IsOurs(m) || !IsIn(members_.witnesses(), p.name)) return;
  if (const CapacityPeer* const dead = members_.Find(m.member)) {
    GiftEdge* const edge = gifts_.EdgeOf(*dead);
    if (edge != nullptr && edge->doubted == m.life) edge->over.insert(p.name);
  }
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    if (at->host != m.member || at->life != m.life) continue;
    at->fenced[p.name] = m.binding;
    if (Settle(*at, now)) Close(at);
    return;
  }
}

bool CapacityHeir::Settle(ClientLog& log, BootInstant now) {
  const std::size_t majority = Majority(members_.witnesses().size());
  std::size_t ours = 0, others = 0;
  for (const auto& [name, binding] : log.fenced) ++(binding == log.binding ? ours : others);
  if (core_.without.fences && now - log.heard > members_.active().interval) ours = majority;
  if (ours >= majority) {
    Inherit(log, now);
    return true;
  }
  return others > members_.witnesses().size() - majority;    // somebody else inherits, or nobody
}

void CapacityHeir::Inherit(const ClientLog& log, BootInstant now) {
  std::size_t fresh = 0;
  for (const ClientLog::Record& r : log.records()) fresh += ledgers_.Find(r.key) == KeyIndex::kNone;
  const bool room = ledgers_.size() + fresh <= kRecordsFactor * members_.wanted().tags_max;
  if (core_.generation.frozen() || !room) return;    // its seats are lost
  ++core_.counts.inherited;
  const MemberBits inherited = SeatsOf(log, now);
  const auto unsaid = static_cast<std::int64_t>(inherited.Count() * core_.generation.base);
  const std::uint32_t known = ledgers_.size();
  for (std::uint32_t id = 0; id < known; ++id) {
    books_.TakeOver(id, static_cast<Parts>(log.Available(ledgers_[id].key).value_or(unsaid)));
  }
  for (std::size_t i = 0; i < log.records().size(); ++i) {
    if (const CapacityKey& key = log.records()[i].key; ledgers_.Find(key) == KeyIndex::kNone) {
      books_.TakeOver(books_.Make(key), static_cast<Parts>(log.Available(i)));
    }
  }
  core_.life.residue |= log.unsettled();
  core_.life.seats.Add(inherited);
  estates_.push_back({inherited, log.host, log.life});
  core_.UpdateStanding();
  SettleEdges(log, now);
}

MemberBits CapacityHeir::SeatsOf(const ClientLog& log, BootInstant now) const {
  MemberBits inherited;
  for (std::size_t i = 0; i < members_.active().members.size(); ++i) {
    if (!log.seats().Has(i) || !core_.generation.participants.Has(i) || core_.life.seats.Has(i)) continue;
    const CapacityPeer* const owner = members_.Find(members_.active().members[i]);
    const bool elsewhere = owner != nullptr && owner->name != log.host && members_.Up(*owner, now) &&
                           owner->generation == core_.generation.number && owner->seats.Has(i);
    if (!elsewhere) inherited.Add(i);
  }
  return inherited;
}

void CapacityHeir::SettleEdges(const ClientLog& log, BootInstant now) {
  const auto neighbours = members_.active().graph.neighbours(members_.NumberOf(log.host));
  for (std::size_t slot = 0; slot < neighbours.size(); ++slot) {
    Settling s(log, slot, members_.active().members[neighbours[slot].node], core_.sequence + 1);
    core_.sequence += s.frames();
    if (members_.IsSelf(s.to)) {
      SettleWith(s.dead, s.life, s.items(), s.sums(), true, now);
    } else {
      s.to_life = members_.peer(s.to).epoch;
      settlings_.push_back(std::move(s));
    }
  }
  SendSettlings();
}

void CapacityHeir::SendSettlings() {
  for (Settling& s : settlings_) {
    ++s.tries;
    for (const std::size_t i : s.Due()) SendSettling(s, i);
  }
  std::erase_if(settlings_, [this](const Settling& s) {
    const std::uint64_t life = members_.peer(s.to).epoch;
    if (s.tries <= kSettleTriesMax && (s.to_life == 0 || s.to_life == life)) return false;
    for (Estate& e : estates_) e.failed |= e.dead == s.dead && e.life == s.life;
    Lose();
    return true;
  });
}

void CapacityHeir::SendSettling(const Settling& s, std::size_t frame) {
  s.Write(frame, core_.Fresh(CapacityKind::kSettle));
  core_.Send(s.to);
}

void CapacityHeir::OnSettle(CapacityPeer& p, const CapacityMessage& m, BootInstant now) {
  if (m.generation != core_.generation.number || m.degree > 1 || m.edges.size() != m.items.size()) return;
  if (!core_.Leased(now)) return;    // perhaps this life is over, and its log with somebody who will not learn of it
  const CapacityPeer* const dead = members_.Find(m.member);
  if (dead == nullptr) return;
  GiftEdge* const edge = gifts_.EdgeOf(*dead);
  if (edge != nullptr && !IsOver(*edge, m.life, now)) return;
  SettleWith(m.member, m.life, m.items, m.edges, m.last, now);
  core_.Acknowledge(p, m);
  logging_.Flush(now);
}

bool CapacityHeir::IsOver(GiftEdge& edge, std::uint64_t life, BootInstant now) {
  if (edge.settled >= life) return true;
  if (edge.doubted != life) {
    edge.doubted = life;
    edge.over.clear();
  }
  const std::string& host = edge.peer->name;
  for (const std::string& name : members_.witnesses()) {
    if (edge.over.contains(name)) continue;
    if (!members_.IsSelf(name)) {
      AskFence(host, life, name);
    } else if (Fence(host, life, now)) {
      edge.over.insert(name);
    }
  }
  return edge.over.size() >= Majority(members_.witnesses().size());
}

void CapacityHeir::SettleWith(std::string_view dead, std::uint64_t life, std::span<const CapacityItem> items,
                              std::span<const EdgeSums> sums, bool last, BootInstant now) {
  CapacityPeer* const p = members_.Find(dead);
  if (p == nullptr || p->slot < 0) return;
  const auto slot = static_cast<std::size_t>(p->slot);
  GiftEdge& edge = gifts_.edges()[slot];
  // About an earlier life of this host: what that received, nobody knows.
  if (std::ranges::any_of(items, [this](const CapacityItem& item) { return item.neighbour != core_.life.epoch; })) {
    Lose();
  }
  if (edge.life == life) gifts_.EndLife(slot, now);
  if (edge.life == 0 && edge.former < life) edge.former = life;    // never met; and never will
  if (edge.former != life || edge.settled >= life) return;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].neighbour != core_.life.epoch) continue;
    std::uint32_t id = ledgers_.Find(items[i].key);
    if (id == KeyIndex::kNone && sums[i].given != 0) id = books_.Add(items[i].key);
    if (id != KeyIndex::kNone) SettleEdge(id, edge.left[id], sums[i]);
  }
  if (!last) return;
  // It never wrote down any gift of the others.
  for (auto& [id, left] : edge.left) SettleEdge(id, left, {left.sums.received, 0});
  edge.left.clear();
  edge.settled = life;
  logging_.Head();
}

void CapacityHeir::SettleEdge(std::uint32_t id, GiftEdge::Left& left, const EdgeSums& theirs) {
  if (left.settled || theirs.received > left.sums.given || theirs.given < left.sums.received ||
      theirs.given - left.sums.received > kWhole) {
    return;
  }
  left.settled = true;
  books_.TakeOver(id, (theirs.given - left.sums.received) + (left.sums.given - theirs.received));
}

void CapacityHeir::OnHaveSettle(const CapacityPeer& p, const CapacityMessage& m) {
  for (Settling& s : settlings_) {
    if (s.to != p.name || !s.Acknowledge(m.sequence)) continue;
    if (s.last_only()) SendSettling(s, s.frames() - 1);
  }
  std::erase_if(settlings_, [](const Settling& s) { return s.done(); });
}

void CapacityHeir::SecureEstates() {
  if (books_.has_estates()) return;
  for (auto at = estates_.begin(); at != estates_.end();) {
    const bool open =
        std::ranges::any_of(settlings_, [&](const Settling& s) { return s.dead == at->dead && s.life == at->life; });
    if (open || at->failed) {
      ++at;
      continue;
    }
    core_.life.secured.Add(at->seats);
    logging_.Head();
    at = estates_.erase(at);
  }
}

}    // namespace dthrottle
