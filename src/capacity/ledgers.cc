#include "capacity/ledgers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dthrottle {

void Ledgers::Clear(std::size_t degree) {
  ledgers_.clear();
  edges_.assign(degree, {});
  index_.Clear();
  next_ = 0;
}

std::uint32_t Ledgers::Find(const CapacityKey& key) const {
  const std::uint32_t id = next_ < size() && ledgers_[next_].key == key ? next_ : index_.Find(key);
  if (id != KeyIndex::kNone) next_ = id + 1;
  return id;
}

std::uint32_t Ledgers::Add(const CapacityKey& key, std::int64_t available) {
  DT_CHECK(available >= 0);
  const std::uint32_t id = size();
  Ledger& ledger = ledgers_.emplace_back();
  ledger.key = key;
  ledger.available = available;
  for (auto& of_slot : edges_) of_slot.emplace_back();
  index_.Add(key, id);
  return id;
}

std::int64_t Ledgers::Base(std::uint32_t id) const {
  std::int64_t base = ledgers_[id].available;
  for (const auto& of_slot : edges_) base += static_cast<std::int64_t>(of_slot[id].given - of_slot[id].received);
  return base;
}

void Ledgers::Give(std::uint32_t id, std::size_t slot, Parts parts) {
  Ledger& ledger = ledgers_[id];
  DT_CHECK(static_cast<Parts>(ledger.available) >= parts);
  ledger.available -= static_cast<std::int64_t>(parts);
  edge(id, slot).given += parts;
}

bool Ledgers::Receive(std::uint32_t id, std::size_t slot, Parts received) {
  LedgerEdge& e = edge(id, slot);
  if (received <= e.received || received - e.received > kWhole) return false;    // no gift is more than everything
  Credit(id, received - e.received);
  e.received = received;
  return true;
}

void Ledgers::Credit(std::uint32_t id, Parts parts) {
  std::int64_t& available = ledgers_[id].available;
  const Parts room = kWhole - std::min(static_cast<Parts>(available), kWhole);
  available += static_cast<std::int64_t>(std::min(parts, room));
}

LedgerEdge Ledgers::Renew(std::uint32_t id, std::size_t slot) {
  LedgerEdge was = std::exchange(edge(id, slot), LedgerEdge());
  Credit(id, was.given - was.logged);
  was.given = was.logged;
  return was;
}

bool Ledgers::Index() {
  index_.Clear();
  for (std::uint32_t id = 0; id < size(); ++id) {
    if (index_.Find(ledgers_[id].key) != KeyIndex::kNone) return false;
    index_.Add(ledgers_[id].key, id);
  }
  return std::ranges::all_of(edges_, [this](const auto& of_slot) { return of_slot.size() == ledgers_.size(); });
}

}    // namespace dthrottle
