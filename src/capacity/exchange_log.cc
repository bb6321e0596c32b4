// The log at the best friend, and repairs.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "capacity/exchange_state.h"

namespace dthrottle {

ExchangeState::Peer* ExchangeState::FriendToBe(Instant now) {
  const std::size_t n = active.members.size(), self = MemberOf(options.name);
  for (std::size_t i = 1; i < n; ++i) {
    Peer& p = peers.at(active.members[(self + i) % n]);
    if (Fine({&p, p.epoch, 1}, now) && p.epoch != 0) return &p;
  }
  return nullptr;
}

void ExchangeState::Bind(Instant now) {
  if (!joined() || frozen() || Fine(LoggingTo(), now)) return;
  Peer* const to = FriendToBe(now);
  if (to == nullptr) return;
  if (LoggingTo().number != 0) ++counts.rebinds;
  candidate = {to, to->epoch, ++bindings};
  complete = false;
  heading = true;
  log_flights.clear();
  behind = ledgers.size();
  for (std::uint32_t id = 0; id < ledgers.size(); ++id) {
    ledgers[id].log_flying = false;
    QueueLog(id);
  }
}

void ExchangeState::CommitBond() {
  if (candidate.number == 0 || !complete) return;
  std::size_t know = 0;
  for (const Peer* p : panel) know += (p == nullptr ? self_binding : p->granted_binding) >= candidate.number;
  if (know < Majority(panel.size())) return;
  bond = std::exchange(candidate, Bond());
}

void ExchangeState::FlushLogs(Instant now) {
  const Bond& to = LoggingTo();
  if (to.number == 0 || !joined() || frozen()) return;
  const std::size_t degree = ledgers.degree(), most = ItemsMax(CapacityKind::kLog, degree);
  std::vector<std::uint32_t> later;    // what is under way waits for its acknowledgement
  std::size_t i = 0;
  while (i < log_waiting.size() || heading) {
    CapacityMessage& m = LogFrame(to);
    Flight flight{m.sequence, now, {}};
    flight.said.reserve(std::min(most, log_waiting.size() - i));
    for (; i < log_waiting.size() && m.items.size() < most; ++i) {
      const std::uint32_t id = log_waiting[i];
      if (ledgers[id].log_flying) {
        later.push_back(id);
        continue;
      }
      Note(id, m);
      flight.said.emplace_back(id, 0);
    }
    if (m.items.empty() && !heading) break;
    heading = false;
    log_flights.push_back(std::move(flight));
    Send(to.friend_->name);
  }
  log_waiting = std::move(later);
}

CapacityMessage& ExchangeState::LogFrame(const Bond& to) {
  CapacityMessage& m = Fresh(CapacityKind::kLog);
  m.to_epoch = to.life;
  m.binding = to.number;
  m.sequence = ++sequence;
  m.degree = ledgers.degree();
  m.members = secured;
  // The heir does not know what is to be settled, and wishes for a new generation.
  const auto unsettled = [](const Edge& e) { return !e.left.empty(); };
  m.last = residue || unlogged_estate != 0 || std::ranges::any_of(edges, unsettled);
  for (const Edge& edge : edges) m.lives.push_back(edge.life);
  return m;
}

void ExchangeState::Note(std::uint32_t id, CapacityMessage& m) {
  Ledger& ledger = ledgers[id];
  ledger.log_queued = false;
  ledger.log_flying = true;
  if (ledger.estate == Ledger::Estate::kTaken) ledger.estate = Ledger::Estate::kNoted;
  CapacityItem& item = m.items.emplace_back();
  item.key = ledgers[id].key;
  item.base = ledgers.Base(id);
  for (std::size_t slot = 0; slot < ledgers.degree(); ++slot) {
    LedgerEdge& e = ledgers.edge(id, slot);
    e.noted = e.given;
    m.edges.push_back({e.given, e.received});
  }
}

void ExchangeState::OnHaveLog(Peer& p, const CapacityMessage& m, Instant now) {
  const Bond& to = LoggingTo();
  if (to.number == 0 || &p != to.friend_ || m.epoch != to.life) return;
  const std::optional<Flight> flight = TakeFlight(log_flights, m.sequence);
  if (!flight) return;
  for (const auto& [id, unused] : flight->said) Logged(id);
  if (candidate.number != 0 && behind == 0 && !std::exchange(complete, true)) {
    SendBeats(now);    // so that witnesses learn of it at once
    CommitBond();
  }
  if (heading || candidate.number != 0) FlushLogs(now);    // the rest waits for the round, to be logged once
  FlushGifts(now);
}

void ExchangeState::Logged(std::uint32_t id) {
  Ledger& ledger = ledgers[id];
  ledger.log_flying = false;
  if (candidate.number != 0 && ledger.bond != candidate.number) {
    ledger.bond = candidate.number;
    --behind;
  }
  if (ledger.estate == Ledger::Estate::kNoted) {
    ledger.estate = Ledger::Estate::kNone;
    if (--unlogged_estate == 0) heading = true;    // the friend may know of seats again
  }
  for (std::size_t slot = 0; slot < ledgers.degree(); ++slot) {
    LedgerEdge& e = ledgers.edge(id, slot);
    e.logged = std::max(e.logged, e.noted);
    if (e.logged > e.arrived) QueueGift(id, slot);
  }
}

void ExchangeState::SayAgain(Instant now) {
  const Duration late = 2 * active.interval;
  for (std::size_t slot = 0; slot < edges.size(); ++slot) {
    while (!edges[slot].flights.empty() && now - edges[slot].flights.front().sent > late) {
      for (const auto& [id, given] : edges[slot].flights.front().said) {
        ledgers.edge(id, slot).flying = false;
        QueueGift(id, slot);
      }
      edges[slot].flights.pop_front();
    }
  }
  while (!log_flights.empty() && now - log_flights.front().sent > late) {
    for (const auto& [id, unused] : log_flights.front().said) {
      ledgers[id].log_flying = false;
      if (ledgers[id].estate == Ledger::Estate::kNoted) ledgers[id].estate = Ledger::Estate::kTaken;
      QueueLog(id);
    }
    if (log_flights.front().said.empty()) heading = true;
    log_flights.pop_front();
  }
}

}    // namespace dthrottle
