#include "capacity/exchange_log.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

void CapacityLogging::Begin() {
  flights_.clear();
  behind_ = 0;
  asked_at_.reset();
  core_.bonds.bond = core_.bonds.candidate = CapacityBond();
}

bool CapacityLogging::Fine(const CapacityBond& b, BootInstant now) const {
  return b.number != 0 && b.friend_->heard && now - *b.friend_->heard <= members_.active().lease / 2 &&
         b.friend_->generation == core_.generation.number && b.friend_->epoch == b.life;
}

CapacityPeer* CapacityLogging::FriendAfter(std::size_t number, BootInstant now) {
  const std::size_t n = members_.active().members.size();
  for (std::size_t i = 1; i < n; ++i) {
    const std::string& name = members_.active().members[(number + i) % n];
    if (members_.IsSelf(name)) continue;
    CapacityPeer& p = members_.peer(name);
    if (Fine({&p, p.epoch, 1}, now) && p.epoch != 0) return &p;
  }
  return nullptr;
}

void CapacityLogging::Bind(BootInstant now) {
  const CapacityBond& has = core_.bonds.LoggingTo();
  const bool answers = !asked_at_ || now - *asked_at_ <= members_.patience();    // it may keep too many logs already
  if (!core_.generation.running() || (Fine(has, now) && answers)) return;
  CapacityPeer* const to = FriendAfter(answers ? members_.SelfNumber() : members_.NumberOf(has.friend_->name), now);
  if (to == nullptr) return;
  core_.bonds.candidate = {to, to->epoch, ++bindings_};
  core_.bonds.complete = false;
  heading_ = true;
  flights_.clear();
  asked_at_.reset();
  behind_ = ledgers_.size();
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) {
    ledgers_[id].log_flying = false;
    books_.QueueLog(id);
  }
}

void CapacityLogging::Commit() {
  CapacityBonds& bonds = core_.bonds;
  if (!bonds.changing() || !bonds.complete) return;
  std::size_t know = 0;
  for (const std::string& name : members_.witnesses()) {
    const bool self = members_.IsSelf(name);
    know += (self ? core_.life.self_binding : members_.peer(name).granted_binding) >= bonds.candidate.number;
  }
  if (know < Majority(members_.witnesses().size())) return;
  bonds.bond = std::exchange(bonds.candidate, CapacityBond());
}

void CapacityLogging::Flush(BootInstant now) {
  const CapacityBond& to = core_.bonds.LoggingTo();
  if (to.number == 0 || !core_.generation.running()) return;
  const std::size_t degree = ledgers_.degree(), most = ItemsMax(CapacityKind::kLog, degree);
  std::vector<std::uint32_t>& waiting = books_.log_waiting();
  std::vector<std::uint32_t> later;    // what is under way waits for its acknowledgement
  std::size_t i = 0;
  while (i < waiting.size() || heading_) {
    CapacityMessage& m = Frame(to);
    CapacityFlight flight{m.sequence, now, {}};
    flight.said.reserve(std::min(most, waiting.size() - i));
    for (; i < waiting.size() && m.items.size() < most; ++i) {
      const std::uint32_t id = waiting[i];
      if (ledgers_[id].log_flying) {
        later.push_back(id);
        continue;
      }
      Note(id, m);
      flight.said.emplace_back(id, 0);
    }
    if (m.items.empty() && !heading_) break;
    heading_ = false;
    flights_.push_back(std::move(flight));
    core_.Send(to.friend_->name);
    if (!asked_at_) asked_at_ = now;
  }
  waiting = std::move(later);
}

CapacityMessage& CapacityLogging::Frame(const CapacityBond& to) {
  CapacityMessage& m = core_.Fresh(CapacityKind::kLog);
  m.to_epoch = to.life;
  m.binding = to.number;
  m.sequence = ++core_.sequence;
  m.degree = ledgers_.degree();
  m.members = core_.life.secured;
  // The heir does not know what is to be settled, and wishes for a new generation.
  m.last = core_.life.residue || books_.has_estates() || gifts_.Unsettled();
  for (const GiftEdge& edge : gifts_.edges()) m.lives.push_back(edge.life);
  return m;
}

void CapacityLogging::Note(std::uint32_t id, CapacityMessage& m) {
  Ledger& ledger = ledgers_[id];
  ledger.log_queued = false;
  ledger.log_flying = true;
  if (ledger.estate == Ledger::Estate::kTaken) ledger.estate = Ledger::Estate::kNoted;
  CapacityItem& item = m.items.emplace_back();
  item.key = ledgers_[id].key;
  item.base = ledgers_.Base(id);
  for (std::size_t slot = 0; slot < ledgers_.degree(); ++slot) {
    LedgerEdge& e = ledgers_.edge(id, slot);
    e.noted = e.given;
    m.edges.push_back({e.given, e.received});
  }
}

bool CapacityLogging::OnHave(const CapacityPeer& p, const CapacityMessage& m) {
  const CapacityBond& to = core_.bonds.LoggingTo();
  if (to.number == 0 || &p != to.friend_ || m.epoch != to.life) return false;
  const std::optional<CapacityFlight> flight = TakeFlight(flights_, m.sequence);
  if (!flight) return false;
  asked_at_.reset();
  for (const auto& [id, unused] : flight->said) Logged(id);
  return true;
}

bool CapacityLogging::Completes() {
  return core_.bonds.changing() && behind_ == 0 && !std::exchange(core_.bonds.complete, true);
}

void CapacityLogging::Logged(std::uint32_t id) {
  Ledger& ledger = ledgers_[id];
  ledger.log_flying = false;
  if (core_.bonds.changing() && ledger.bond != core_.bonds.candidate.number) {
    ledger.bond = core_.bonds.candidate.number;
    --behind_;
  }
  if (books_.EstateLogged(ledger)) heading_ = true;    // the friend may know of seats again
  for (std::size_t slot = 0; slot < ledgers_.degree(); ++slot) {
    LedgerEdge& e = ledgers_.edge(id, slot);
    e.logged = std::max(e.logged, e.noted);
    if (e.logged > e.arrived) gifts_.Queue(id, slot);
  }
}

void CapacityLogging::SayAgain(BootInstant now) {
  const Duration late = kFlightRounds * members_.active().interval;
  while (!flights_.empty() && now - flights_.front().sent > late) {
    for (const auto& [id, unused] : flights_.front().said) {
      ledgers_[id].log_flying = false;
      if (ledgers_[id].estate == Ledger::Estate::kNoted) ledgers_[id].estate = Ledger::Estate::kTaken;
      books_.QueueLog(id);
    }
    if (flights_.front().said.empty()) heading_ = true;
    flights_.pop_front();
  }
}

void CapacityLogging::QueueAll() {
  heading_ = true;
  behind_ = 0;
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) {
    behind_ += core_.bonds.changing() && ledgers_[id].bond != core_.bonds.candidate.number;
  }
}

}    // namespace dthrottle
