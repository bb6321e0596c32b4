#include "lease/bands.h"

#include <algorithm>

namespace dthrottle::lease {

std::int64_t Bands::BandOf(std::int64_t priority) const {
  if (trees_.size() < kBandsMax || trees_.contains(priority)) return priority;
  const auto lower = trees_.upper_bound(priority);
  return lower != trees_.end() ? lower->first : trees_.rbegin()->first;
}

void Bands::Put(Slot slot, std::span<const Band> wants) {
  Erase(slot);
  if (slot >= bands_of_.size()) bands_of_.resize(slot + 1);
  std::map<std::int64_t, Demand> demands;
  for (const Band& band : wants) {
    const std::int64_t own = trees_.try_emplace(BandOf(band.priority), seed_).first->first;
    Demand& demand = demands.try_emplace(own, Demand{0, 0}).first->second;
    demand.wants += band.wants;
    demand.weight += static_cast<double>(band.clients);
  }
  for (auto& [band, demand] : demands) {
    demand.weight = std::max(demand.weight, 1.0);
    trees_.find(band)->second.Insert(slot, demand);
    bands_of_[slot].push_back(band);
  }
}

void Bands::Erase(Slot slot) {
  if (slot >= bands_of_.size()) return;
  for (const std::int64_t band : bands_of_[slot]) {
    const auto tree = trees_.find(band);
    tree->second.Erase(slot);
    if (tree->second.empty()) trees_.erase(tree);
  }
  bands_of_[slot].clear();
}

double Bands::Share(double capacity, Slot slot) const {
  const std::vector<std::int64_t>& own = bands_of_[slot];
  double share = 0;
  std::size_t seen = 0;
  for (auto tree = trees_.begin(); seen < own.size(); ++tree) {
    if (std::ranges::find(own, tree->first) != own.end()) {
      share += tree->second.Share(Algorithm::kFairShare, capacity, slot);
      ++seen;
    }
    capacity = std::max(0.0, capacity - tree->second.sums().wants);
  }
  return share;
}

}    // namespace dthrottle::lease
