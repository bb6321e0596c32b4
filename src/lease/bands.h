// The holders of one resource by priority, for the algorithm priority_band.
//
// Doorman leaves what a priority means to the algorithm ("Client state"). Here a larger one comes first: a band has
// what those above it leave of the capacity, and divides it by fair_share. A server is in the band of each of its
// clients, as its PriorityBandAggregates say, so a tree of servers divides like one server.
//
// Strangers choose priorities, so there are at most kBandsMax bands: where there are as many, another priority counts
// as the next lower one that there is, or as the lowest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "lease/demand_tree.h"
#include "lease/lease.h"

namespace dthrottle::lease {

class Bands {
 public:
  using Slot = DemandTree::Slot;

  static constexpr std::size_t kBandsMax = 64;

  explicit Bands(std::uint64_t seed) : seed_(seed) {}

  // What the holder wants from now on.
  void Put(Slot slot, std::span<const Band> wants);
  void Erase(Slot slot);
  // What there is for the holder. O(kBandsMax + log holders) for each of its bands.
  double Share(double capacity, Slot slot) const;

 private:
  std::int64_t BandOf(std::int64_t priority) const;

  std::uint64_t seed_;
  std::map<std::int64_t, DemandTree, std::greater<>> trees_;    // none is empty
  std::vector<std::vector<std::int64_t>> bands_of_;             // by slot
};

}    // namespace dthrottle::lease
