#include "lease/share.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

namespace dthrottle::lease {

namespace {

// The level at which min(wants, level x weight) sum to `capacity`: the client that wants least for its weight is
// satisfied first, and what it leaves raises the level for the rest. Doorman's published server stops after two such
// rounds.
double FairLevel(double capacity, std::span<const Demand> demands) {
  std::vector<std::size_t> order(demands.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto ratio = [&](std::size_t i) { return demands[i].wants / demands[i].weight; };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ratio(a) < ratio(b); });
  double left = capacity, weight = 0;
  for (const Demand& d : demands) weight += d.weight;
  for (const std::size_t i : order) {
    if (demands[i].wants * weight > left * demands[i].weight) return left / weight;
    left -= demands[i].wants;
    weight -= demands[i].weight;
  }
  return std::numeric_limits<double>::infinity();
}

}    // namespace

double ProportionalShare(const Demand& demand, double equal, double unused, double needed) {
  const double own = equal * demand.weight, beyond = demand.wants - own;
  if (beyond <= 0) return demand.wants;
  return std::min(demand.wants, own + std::max(0.0, unused) * beyond / needed);
}

double ProportionalScaling(double wants, double capacity, double all_wants) {
  return all_wants <= capacity ? wants : wants * (capacity / all_wants);
}

namespace {

std::vector<double> DivideByPriority(double capacity, std::span<const Demand> demands) {
  std::map<std::int64_t, std::vector<std::size_t>, std::greater<>> bands;
  for (std::size_t i = 0; i < demands.size(); ++i) bands[demands[i].priority].push_back(i);
  std::vector<double> shares(demands.size());
  for (const auto& [priority, members] : bands) {
    std::vector<Demand> band;
    for (const std::size_t i : members) band.push_back(demands[i]);
    const std::vector<double> parts = Divide(Algorithm::kFairShare, capacity, band);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      shares[members[i]] = parts[i];
      capacity = std::max(0.0, capacity - parts[i]);
    }
  }
  return shares;
}

}    // namespace

std::vector<double> Divide(Algorithm algorithm, double capacity, std::span<const Demand> demands) {
  if (algorithm == Algorithm::kPriorityBand) return DivideByPriority(capacity, demands);
  double wants = 0, weight = 0, unused = 0, needed = 0;
  for (const Demand& d : demands) wants += d.wants, weight += d.weight;
  const double equal = capacity / weight;
  for (const Demand& d : demands) {
    const double beyond = d.wants - equal * d.weight;
    (beyond > 0 ? needed : unused) += std::abs(beyond);
  }
  const double level = algorithm == Algorithm::kFairShare ? FairLevel(capacity, demands) : 0;
  const auto share = [&](const Demand& d) {
    switch (algorithm) {
      case Algorithm::kNone:
        return d.wants;
      case Algorithm::kStatic:
        return std::min(d.wants, capacity);
      case Algorithm::kProportionalShare:
        return ProportionalShare(d, equal, unused, needed);
      case Algorithm::kProportionalScaling:
        return ProportionalScaling(d.wants, capacity, wants);
      case Algorithm::kFairShare:
      case Algorithm::kPriorityBand:
        break;
    }
    return std::min(d.wants, level * d.weight);
  };
  std::vector<double> shares(demands.size());
  std::transform(demands.begin(), demands.end(), shares.begin(), share);
  return shares;
}

}    // namespace dthrottle::lease
