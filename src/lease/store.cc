#include "lease/store.h"

#include <algorithm>

#include "lease/resource.h"

namespace dthrottle::lease {

namespace {

__extension__ using Parts = unsigned __int128;

Demand Together(std::span<const Band> bands) {
  Demand demand{0, 0};
  for (const Band& band : bands) {
    demand.wants += band.wants;
    demand.weight += static_cast<double>(band.clients);
  }
  demand.wants = std::min(demand.wants, kCapacityMax);
  demand.weight = std::max(demand.weight, 1.0);    // a server that waits for its first client
  return demand;
}

constexpr double kPartsOfOne = 1ull << 52;    // 10^7 bands of kCapacityMax come to less than 2^128 parts

Parts PartsOf(double amount) {
  return static_cast<Parts>(amount * kPartsOfOne);
}

double AmountOf(Parts parts) {
  return static_cast<double>(parts) / kPartsOfOne;
}

}    // namespace

std::optional<Store::Slot> Store::Find(HolderKind kind, std::string_view id) const {
  const auto found = index(kind).find(id);
  return found == index(kind).end() ? std::nullopt : std::optional(found->second);
}

Store::Slot Store::Put(HolderKind kind, std::string_view id, std::span<const Band> wants) {
  const auto found = index(kind).find(id);
  if (found != index(kind).end()) {
    const Slot slot = found->second;
    TakeOff(holders_[slot].wants);
    AddUp(wants);
    holders_[slot].wants.assign(wants.begin(), wants.end());
    tree_.SetDemand(slot, Together(wants));
    if (bands_) bands_->Put(slot, wants);
    return slot;
  }
  Slot slot;
  if (free_.empty()) {
    slot = static_cast<Slot>(holders_.size());
    holders_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  holders_[slot] = {.id = std::string(id), .kind = kind, .wants = {wants.begin(), wants.end()}, .has = {}};
  index(kind).emplace(id, slot);
  AddUp(wants);
  tree_.Insert(slot, Together(wants));
  if (bands_) bands_->Put(slot, wants);
  by_expiry_.emplace(BootInstant(), slot);    // until it is granted something
  return slot;
}

void Store::Grant(Slot slot, const Lease& lease, double share, BootInstant now) {
  Holder& holder = holders_[slot];
  auto node = by_expiry_.extract({holder.has.expiry, slot});
  node.value().first = lease.expiry;
  by_expiry_.insert(by_expiry_.end(), std::move(node));    // mostly the last
  holder.has = lease;
  holder.share = share;
  holder.asked = now;
  tree_.SetHas(slot, lease.capacity);
}

void Store::Drop(Slot slot) {
  Holder& holder = holders_[slot];
  by_expiry_.erase({holder.has.expiry, slot});
  tree_.Erase(slot);
  TakeOff(holder.wants);
  if (bands_) bands_->Erase(slot);
  index(holder.kind).erase(index(holder.kind).find(std::string_view(holder.id)));
  holder = {};
  free_.push_back(slot);
}

void Store::KeepBands(bool keep) {
  if (keep == bands_.has_value()) return;
  bands_.reset();
  if (!keep) return;
  bands_.emplace(seed_);
  for (const auto& [expiry, slot] : by_expiry_) bands_->Put(slot, holders_[slot].wants);
}

bool Store::Erase(HolderKind kind, std::string_view id) {
  const auto found = index(kind).find(id);
  if (found == index(kind).end()) return false;
  Drop(found->second);
  return true;
}

std::size_t Store::Expire(BootInstant now, std::size_t most) {
  std::size_t expired = 0;
  for (; expired < most && HasExpired(now); ++expired) Drop(by_expiry_.begin()->second);
  return expired;
}

void Store::AddUp(std::span<const Band> wants) {
  for (const Band& band : wants) {
    for (Sum* const sum : {&sums_[band.priority], &all_}) {
      ++sum->bands;
      sum->clients += band.clients;
      sum->wants += PartsOf(band.wants);
    }
  }
}

void Store::TakeOff(std::span<const Band> wants) {
  for (const Band& band : wants) {
    const auto its = sums_.find(band.priority);
    for (Sum* const sum : {&its->second, &all_}) {
      --sum->bands;
      sum->clients -= band.clients;
      sum->wants -= PartsOf(band.wants);
    }
    if (its->second.bands == 0) sums_.erase(its);
  }
}

std::vector<Band> Store::Aggregate() const {
  std::vector<Band> bands;
  Sum left = all_;
  for (const auto& [priority, its] : sums_) {
    const bool last = bands.size() + 1 == kBandsMax;
    const Sum& sum = last ? left : its;
    bands.push_back({priority, std::min(sum.clients, kClientsMax), std::min(AmountOf(sum.wants), kCapacityMax)});
    if (last) break;
    left.clients -= its.clients;
    left.wants -= its.wants;
  }
  return bands;
}

}    // namespace dthrottle::lease
