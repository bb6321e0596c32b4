// The best friend's part: other hosts' logs, their inheritance, and what was under way when a host died.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {
namespace {

constexpr std::size_t kClientsMax = kDegreeMax;    // logs kept for others
constexpr std::size_t kLogsMax = 4;                // of one of them: of several lives, or bonds
constexpr int kSettleTriesMax = 200;               // intervals

}    // namespace

void ExchangeState::OnLog(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || !joined() || m.to_epoch != epoch || m.binding == 0) return;
  if (!IsIn(active.members, p.name)) return;
  SeeLife(p, m.epoch, now);
  if (m.degree != active.graph.Degree(MemberOf(p.name))) {
    ++counts.junk;
    return;
  }
  ClientLog* log = nullptr;
  std::size_t logs = 0;
  for (ClientLog& c : clients) {
    if (c.host != p.name) continue;
    ++logs;
    if (c.life > m.epoch || (c.life == m.epoch && c.binding > m.binding)) return;
    if (c.life == m.epoch && c.binding == m.binding) log = &c;
  }
  if (log == nullptr) {
    if (m.epoch != p.epoch || clients.size() >= kClientsMax || logs >= kLogsMax) return;
    if (const auto at = closed.find(p.name); at != closed.end() && std::pair(m.epoch, m.binding) <= at->second) return;
    log = &clients.emplace_back(p.name, m.epoch, m.binding, m.degree, now);
  }
  log->heard = now;
  if (log->Take(m, kRecordsFactor * wanted.tags_max)) Acknowledge(p, m);
}

std::list<ClientLog>::iterator ExchangeState::Close(std::list<ClientLog>::iterator log) {
  auto& last = closed[log->host];
  last = std::max(last, std::pair(log->life, log->binding));
  return clients.erase(log);
}

void ExchangeState::WatchClients(Instant now) {
  for (auto at = clients.begin(); at != clients.end();) {
    const Peer& p = peers.at(at->host);
    if (p.epoch > at->life || now - at->heard > patience) AskFence(*at, now);
    at = Settle(*at, now) ? Close(at) : std::next(at);
  }
}

void ExchangeState::AskFence(ClientLog& log, Instant now) {
  for (const std::string& name : witnesses) {
    if (log.fenced.contains(name)) continue;
    if (IsSelf(name)) {
      if (const auto binding = Fence(log.host, log.life, now)) log.fenced[name] = *binding;
      continue;
    }
    AskFence(log.host, log.life, name);
  }
}

void ExchangeState::AskFence(std::string_view host, std::uint64_t life, std::string_view witness_name) {
  CapacityMessage& m = Fresh(CapacityKind::kFence);
  m.member = host;
  m.life = life;
  Send(witness_name);
}

std::optional<std::uint64_t> ExchangeState::Fence(std::string_view host, std::uint64_t life, Instant now) {
  bool changed = false;
  const std::optional<std::uint64_t> binding = witness.OnFence(host, generation, life, changed, now);
  if (changed) Save();
  return binding;
}

void ExchangeState::OnFence(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || !joined() || !IsIn(active.members, m.member)) return;
  const std::string dead = m.member;
  const std::uint64_t life = m.life;
  const std::optional<std::uint64_t> binding = Fence(dead, life, now);
  if (!binding) return;
  CapacityMessage& reply = Fresh(CapacityKind::kFenced);
  reply.member = dead;
  reply.life = life;
  reply.binding = *binding;
  Send(p.name);
}

void ExchangeState::OnFenced(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || !joined() || !IsIn(witnesses, p.name)) return;
  if (const Peer* dead = Find(m.member); dead != nullptr && dead->slot >= 0) {
    Edge& edge = edges[static_cast<std::size_t>(dead->slot)];
    if (edge.doubted == m.life) edge.over.insert(p.name);
  }
  for (auto at = clients.begin(); at != clients.end(); ++at) {
    if (at->host != m.member || at->life != m.life) continue;
    at->fenced[p.name] = m.binding;
    if (Settle(*at, now)) Close(at);
    return;
  }
}

bool ExchangeState::Settle(ClientLog& log, Instant now) {
  const std::size_t majority = Majority(witnesses.size());
  std::size_t ours = 0, others = 0;
  for (const auto& [name, binding] : log.fenced) ++(binding == log.binding ? ours : others);
  if (without.fences && now - log.heard > active.interval) ours = majority;
  if (ours >= majority) {
    Inherit(log, now);
    return true;
  }
  return others > witnesses.size() - majority;    // somebody else inherits, or nobody
}

void ExchangeState::Inherit(const ClientLog& log, Instant now) {
  std::size_t fresh = 0;
  for (const ClientLog::Record& r : log.records()) fresh += ledgers.Find(r.key) == KeyIndex::kNone;
  if (frozen() || ledgers.size() + fresh > kRecordsFactor * wanted.tags_max) return;    // its seats are lost
  ++counts.inherited;
  const MemberBits inherited = SeatsOf(log, now);
  const auto unsaid = static_cast<std::int64_t>(inherited.Count() * base);
  const std::uint32_t known = ledgers.size();
  for (std::uint32_t id = 0; id < known; ++id) {
    TakeOver(id, static_cast<Parts>(log.Available(ledgers[id].key).value_or(unsaid)));
  }
  for (std::size_t i = 0; i < log.records().size(); ++i) {
    if (const CapacityKey& key = log.records()[i].key; ledgers.Find(key) == KeyIndex::kNone) {
      TakeOver(MakeLedger(key, AvailableElsewhere()), static_cast<Parts>(log.Available(i)));
    }
  }
  residue |= log.unsettled();
  seats.Add(inherited);
  estates.push_back({inherited, log.host, log.life});
  UpdateStanding();
  SettleEdges(log, now);
}

MemberBits ExchangeState::SeatsOf(const ClientLog& log, Instant now) const {
  MemberBits inherited;
  for (std::size_t i = 0; i < active.members.size(); ++i) {
    if (!log.seats().Has(i) || !participants.Has(i) || seats.Has(i)) continue;
    const auto owner = peers.find(active.members[i]);
    const bool elsewhere = owner != peers.end() && owner->first != log.host && Up(owner->second, now) &&
                           owner->second.generation == generation && owner->second.seats.Has(i);
    if (!elsewhere) inherited.Add(i);
  }
  return inherited;
}

void ExchangeState::TakeOver(std::uint32_t id, Parts parts) {
  Ledger& ledger = ledgers[id];
  ledgers.Credit(id, parts);
  if (ledger.estate == Ledger::Estate::kNone) ++unlogged_estate;
  ledger.estate = Ledger::Estate::kTaken;
  Changed(id);
}

void ExchangeState::SettleEdges(const ClientLog& log, Instant now) {
  const auto neighbours = active.graph.neighbours(MemberOf(log.host));
  for (std::size_t slot = 0; slot < neighbours.size(); ++slot) {
    Settling s(log, slot, active.members[neighbours[slot].node], sequence + 1);
    sequence += s.frames();
    if (IsSelf(s.to)) {
      SettleWith(s.dead, s.life, s.items(), s.sums(), true, now);
    } else {
      s.to_life = peers.at(s.to).epoch;
      settlings.push_back(std::move(s));
    }
  }
  SendSettlings();
}

void ExchangeState::SendSettlings() {
  for (Settling& s : settlings) {
    ++s.tries;
    for (const std::size_t i : s.Due()) SendSettling(s, i);
  }
  std::erase_if(settlings, [this](const Settling& s) {
    const std::uint64_t life = peers.at(s.to).epoch;
    if (s.tries <= kSettleTriesMax && (s.to_life == 0 || s.to_life == life)) return false;
    for (Estate& e : estates) e.failed |= e.dead == s.dead && e.life == s.life;
    return residue = heading = true;
  });
}

void ExchangeState::OnSettle(Peer& p, const CapacityMessage& m, Instant now) {
  if (m.generation != generation || m.degree > 1 || m.edges.size() != m.items.size()) return;
  if (!Leased(now)) return;    // perhaps this life is over, and its log with somebody who will not learn of it
  const Peer* const dead = Find(m.member);
  if (dead == nullptr) return;
  if (dead->slot >= 0 && !IsOver(edges[static_cast<std::size_t>(dead->slot)], m.life, now)) return;
  SettleWith(m.member, m.life, m.items, m.edges, m.last, now);
  Acknowledge(p, m);
  FlushLogs(now);
}

bool ExchangeState::IsOver(Edge& edge, std::uint64_t life, Instant now) {
  if (edge.settled >= life) return true;
  if (edge.doubted != life) {
    edge.doubted = life;
    edge.over.clear();
  }
  const std::string& host = edge.peer->name;
  for (const std::string& name : witnesses) {
    if (edge.over.contains(name)) continue;
    if (!IsSelf(name)) {
      AskFence(host, life, name);
    } else if (Fence(host, life, now)) {
      edge.over.insert(name);
    }
  }
  return edge.over.size() >= Majority(witnesses.size());
}

void ExchangeState::SettleWith(std::string_view dead, std::uint64_t life, std::span<const CapacityItem> items,
                               std::span<const EdgeSums> sums, bool last, Instant now) {
  Peer* const p = Find(dead);
  if (p == nullptr || p->slot < 0) return;
  const auto slot = static_cast<std::size_t>(p->slot);
  Edge& edge = edges[slot];
  // About an earlier life of this host: what that received, nobody knows.
  if (std::ranges::any_of(items, [this](const CapacityItem& item) { return item.neighbour != epoch; })) {
    residue = heading = true;
  }
  if (edge.life == life) EndLife(slot, now);
  if (edge.life == 0 && edge.former < life) edge.former = life;    // never met; and never will
  if (edge.former != life || edge.settled >= life) return;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].neighbour != epoch) continue;
    std::uint32_t id = ledgers.Find(items[i].key);
    if (id == KeyIndex::kNone && sums[i].given != 0) id = AddLedger(items[i].key);
    if (id != KeyIndex::kNone) SettleEdge(id, edge.left[id], sums[i]);
  }
  if (!last) return;
  // It never wrote down any gift of the others.
  for (auto& [id, left] : edge.left) SettleEdge(id, left, {left.sums.received, 0});
  edge.left.clear();
  edge.settled = life;
  heading = true;
}

void ExchangeState::SettleEdge(std::uint32_t id, Left& left, const EdgeSums& theirs) {
  if (left.settled || theirs.received > left.sums.given || theirs.given < left.sums.received ||
      theirs.given - left.sums.received > kWhole) {
    return;
  }
  left.settled = true;
  TakeOver(id, (theirs.given - left.sums.received) + (left.sums.given - theirs.received));
}

void ExchangeState::OnHaveSettle(Peer& p, const CapacityMessage& m) {
  for (Settling& s : settlings) {
    if (s.to != p.name || !s.Acknowledge(m.sequence)) continue;
    if (s.last_only()) SendSettling(s, s.frames() - 1);
  }
  std::erase_if(settlings, [](const Settling& s) { return s.done(); });
}

void ExchangeState::SecureEstates() {
  if (unlogged_estate != 0) return;
  for (auto at = estates.begin(); at != estates.end();) {
    const bool open =
        std::ranges::any_of(settlings, [&](const Settling& s) { return s.dead == at->dead && s.life == at->life; });
    if (open || at->failed) {
      ++at;
      continue;
    }
    secured.Add(at->seats);
    heading = true;
    at = estates.erase(at);
  }
}

}    // namespace dthrottle
