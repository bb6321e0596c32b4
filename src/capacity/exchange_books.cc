#include "capacity/exchange_books.h"

#include <algorithm>

#include "base/check.h"

namespace dthrottle {
namespace {

constexpr double kDemandFloor = 0.01;    // of an equal share: what a host with no demand counts as having

}    // namespace

void CapacityBooks::Begin() {
  ledgers_.Clear(core_.members.active().graph.Degree(core_.members.SelfNumber()));
  log_waiting_.clear();
  share_waiting_.clear();
  estates_ = 0;
  for (const auto& [key, demand] : demands_) Add(key);
}

void CapacityBooks::SetDemand(std::span<const TagDemand> demands) {
  for (const TagDemand& d : demands) {
    DT_CHECK(d.capacity > 0 && d.demand >= 0);
    const Asked asked{d.demand / d.capacity, d.pinned, d.pin};
    const bool wanted = asked.demand > 0 || asked.pinned != 0;
    if (!wanted) {
      demands_.erase(d.key);
    } else if (demands_.size() < core_.members.wanted().tags_max || demands_.contains(d.key)) {
      demands_[d.key] = asked;
    } else {
      ++core_.counts.tags_refused;
      continue;
    }
    std::uint32_t id = ledgers_.Find(d.key);
    if (id == KeyIndex::kNone && wanted && core_.generation.joined()) id = Add(d.key);
    if (id != KeyIndex::kNone) Want(id, asked);
  }
}

std::uint32_t CapacityBooks::Add(const CapacityKey& key) {
  if (ledgers_.size() >= core_.members.wanted().tags_max) {
    ++core_.counts.tags_refused;
    return KeyIndex::kNone;
  }
  return Make(key);
}

std::uint32_t CapacityBooks::Make(const CapacityKey& key) {
  const std::uint32_t id = ledgers_.Add(key, static_cast<std::int64_t>(core_.SeatParts()));
  // The log says what it says of a tag without a ledger, and that is right as long as nothing moves.
  ledgers_[id].bond = core_.bonds.candidate.number;
  if (const auto at = demands_.find(key); at != demands_.end()) Want(id, at->second);
  QueueShare(id);
  return id;
}

void CapacityBooks::Want(std::uint32_t id, const Asked& asked) {
  Ledger& ledger = ledgers_[id];
  const Parts reserve = core_.generation.reserve;
  ledger.demand = asked.demand;
  ledger.pinned = static_cast<std::int64_t>(asked.pinned > reserve ? asked.pinned - reserve : 0);
  if (std::exchange(ledger.pin, asked.pin) != asked.pin) QueueShare(id);
}

Parts CapacityBooks::Held(const CapacityKey& key, BootInstant now) const {
  if (now >= core_.standing.valid_until) return core_.standing.reserve;
  const std::uint32_t id = ledgers_.Find(key);
  return id == KeyIndex::kNone ? core_.standing.other : HeldOf(ledgers_[id]);
}

Load CapacityBooks::LoadOf(double demand, std::int64_t available) const {
  const CapacitySettings& s = core_.members.active();
  // A host that reports nothing takes no part.
  const double floor = s.indicator == &Reported() ? 0 : kDemandFloor / static_cast<double>(s.members.size());
  return {std::max(demand, floor), static_cast<double>(core_.generation.reserve + static_cast<Parts>(available)) /
                                       static_cast<double>(kWhole)};
}

std::optional<double> CapacityBooks::IndicatorOf(const Load& load) const {
  const auto& indicator = core_.members.active().indicator;
  if (!indicator->Defined(load)) return std::nullopt;
  return indicator->Value(load);
}

void CapacityBooks::TakeOver(std::uint32_t id, Parts parts) {
  Ledger& ledger = ledgers_[id];
  ledgers_.Credit(id, parts);
  if (ledger.estate == Ledger::Estate::kNone) ++estates_;
  ledger.estate = Ledger::Estate::kTaken;
  Changed(id);
}

bool CapacityBooks::EstateLogged(Ledger& ledger) {
  if (ledger.estate != Ledger::Estate::kNoted) return false;
  ledger.estate = Ledger::Estate::kNone;
  return --estates_ == 0;
}

bool CapacityBooks::TakeShares(std::vector<TagShare>& changed, std::size_t most) {
  for (; most > 0 && !share_waiting_.empty(); --most) {
    Ledger& ledger = ledgers_[share_waiting_.back()];
    share_waiting_.pop_back();
    ledger.share_queued = false;
    changed.push_back({ledger.key, ShareOf(ledger), static_cast<Parts>(ledger.blocked), ledger.pin});
  }
  return !share_waiting_.empty();
}

void CapacityBooks::QueueAll() {
  for (std::uint32_t id = 0; id < ledgers_.size(); ++id) {
    estates_ += ledgers_[id].estate != Ledger::Estate::kNone;
    if (ledgers_[id].log_queued) log_waiting_.push_back(id);
    QueueShare(id);
  }
}

}    // namespace dthrottle
