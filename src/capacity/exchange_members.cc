#include "capacity/exchange_members.h"

#include <utility>

#include "base/check.h"

namespace dthrottle {

CapacityMembers::CapacityMembers(std::string self, CapacitySettings wanted, BootInstant now)
    : self_(std::move(self)), wanted_(std::move(wanted)), active_(wanted_), since_(now) {
  DT_CHECK(CheckCapacitySettings(wanted_, self_).has_value());
  Use();
}

void CapacityMembers::Want(CapacitySettings settings) {
  DT_CHECK(CheckCapacitySettings(settings, self_).has_value());
  wanted_ = std::move(settings);
  Use();
  if (settled()) active_ = wanted_;    // what is this host's own business holds at once
}

void CapacityMembers::Adopt() {
  active_ = wanted_;
  active_digest_ = wanted_digest_;
  Use();
}

void CapacityMembers::Use() {
  wanted_digest_ = DigestOf(wanted_);
  patience_ = std::max(PatienceOf(wanted_), PatienceOf(active_));
  wanted_witnesses_ = WitnessesOf(wanted_.members);
  witnesses_ = WitnessesOf(active_.members);
  for (auto at = peers_.begin(); at != peers_.end();) {
    at = IsIn(wanted_.members, at->first) || IsIn(active_.members, at->first) ? std::next(at) : peers_.erase(at);
  }
  for (const auto* members : {&wanted_.members, &active_.members}) {
    for (const std::string& name : *members) {
      if (!IsSelf(name)) peers_.try_emplace(name, name);
    }
  }
  by_name_.clear();
  for (auto& [name, peer] : peers_) by_name_[name] = &peer;
}

std::uint32_t CapacityMembers::NumberOf(std::string_view name) const {
  const auto at = std::ranges::lower_bound(active_.members, name);
  DT_CHECK(at != active_.members.end() && *at == name);
  return static_cast<std::uint32_t>(at - active_.members.begin());
}

CapacityPeer* CapacityMembers::Find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

std::size_t CapacityMembers::CountUp(const std::vector<std::string>& names, BootInstant now,
                                     const CapacityPeer* without) const {
  return static_cast<std::size_t>(std::ranges::count_if(names, [&](const std::string& name) {
    const CapacityPeer* const p = Find(name);
    return IsSelf(name) || (p != without && Up(*p, now));
  }));
}

bool CapacityMembers::IsCoordinator(BootInstant now) const {
  for (const std::string& name : wanted_witnesses_) {
    if (IsSelf(name)) return true;
    if (const CapacityPeer& p = peer(name); Up(p, now) && !p.trust.PassedOver(now)) return false;
  }
  return false;
}

bool CapacityMembers::Leads(const CapacityPeer& p, BootInstant now) const {
  for (const std::string& name : wanted_witnesses_) {
    if (name == p.name) return !p.trust.PassedOver(now);
    if (IsSelf(name)) continue;
    const CapacityPeer& earlier = peer(name);
    if (earlier.trust.PassedOver(now)) continue;
    if (Up(earlier, now) || Fresh(now)) return false;    // perhaps not heard yet
  }
  return false;
}

CapacityPeer* CapacityMembers::Leader(BootInstant now) const {
  for (const std::string& name : wanted_witnesses_) {
    CapacityPeer* const p = Find(name);
    if (p != nullptr && Up(*p, now) && !p->trust.PassedOver(now)) return p;
  }
  return nullptr;
}

bool CapacityMembers::StandsIn(BootInstant now) const {
  return std::ranges::any_of(peers_, [&](const auto& p) { return p.second.trust.PassedOver(now); });
}

}    // namespace dthrottle
