// The algorithms of src/lease: worked cases of the document, properties over random demands, and the tree against the
// plain form.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/prng.h"
#include "lease/demand_tree.h"
#include "lease/store.h"
#include "lease/share.h"

namespace dthrottle::lease {
namespace {

using Values = std::vector<double>;

constexpr Algorithm kAll[] = {Algorithm::kNone, Algorithm::kStatic, Algorithm::kProportionalShare,
                              Algorithm::kProportionalScaling, Algorithm::kFairShare};    // of those that know no priority
constexpr Algorithm kSharing[] = {Algorithm::kProportionalShare, Algorithm::kProportionalScaling,
                                  Algorithm::kFairShare};

Values Of(Algorithm algorithm, double capacity, const Values& wants) {
  std::vector<Demand> demands;
  for (const double w : wants) demands.push_back({w, 1});
  return Divide(algorithm, capacity, demands);
}

bool Close(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

// All kinds: equal ones, zeros, huge ones, servers of many clients.
std::vector<Demand> RandomDemands(Prng& prng) {
  std::vector<Demand> demands(1 + prng.Below(30));
  for (Demand& d : demands) {
    d.wants = static_cast<double>(prng.Below(100)) * (prng.Below(10) == 0 ? 1e6 : 1);
    d.weight = static_cast<double>(1 + (prng.Below(3) == 0 ? prng.Below(50) : 0));
  }
  return demands;
}

double Sum(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST_CASE("lease shares: the document's worked cases") {
  CHECK(Of(Algorithm::kNone, 120, {100, 10, 1000}) == Values{100, 10, 1000});
  CHECK(Of(Algorithm::kStatic, 120, {50, 200, 300}) == Values{50, 120, 120});
  CHECK(Of(Algorithm::kFairShare, 120, {1000, 50, 10}) == Values{60, 50, 10});
  CHECK(Of(Algorithm::kFairShare, 120, {1000, 60, 10}) == Values{55, 55, 10});
  const Values proportional = Of(Algorithm::kProportionalShare, 120, {1000, 50, 10});
  CHECK(std::abs(proportional[0] - 69.69072165) < 1e-8);
  CHECK(std::abs(proportional[1] - 40.30927835) < 1e-8);
  CHECK(proportional[2] == 10);
  CHECK(Of(Algorithm::kProportionalScaling, 120, {100, 60, 80}) == Values{50, 30, 40});
}

TEST_CASE("lease shares: priority_band serves the highest first, fairly, and then of what is left the next") {
  const std::vector<Demand> demands{{60, 1, 1}, {50, 1, 9}, {80, 1, 1}, {10, 1, 9}, {5, 1, -3}};
  CHECK(Divide(Algorithm::kPriorityBand, 120, demands) == Values{30, 50, 30, 10, 0});
  CHECK(Divide(Algorithm::kPriorityBand, 40, demands) == Values{0, 30, 0, 10, 0});
  CHECK(Divide(Algorithm::kPriorityBand, 300, demands) == Values{60, 50, 80, 10, 5});
}

// A store of clients of one band each, and of servers of several.
TEST_CASE("lease shares: what the store gives by priority is what the plain form gives, band by band") {
  Prng prng(11);
  for (int round = 0; round < 300; ++round) {
    Store store(prng.Next());
    store.KeepBands(round % 2 == 0);
    std::vector<Demand> demands;
    std::vector<std::pair<Store::Slot, std::vector<std::size_t>>> holders;
    for (std::uint64_t i = 0, n = 1 + prng.Below(12); i < n; ++i) {
      std::vector<Band> bands;
      holders.emplace_back(0, std::vector<std::size_t>());
      for (std::int64_t priority = 0; priority < 3; ++priority) {
        if (prng.Below(2) == 0 && !(priority == 2 && bands.empty())) continue;
        bands.push_back({priority, 1 + prng.Below(5), static_cast<double>(prng.Below(100))});
        holders.back().second.push_back(demands.size());
        demands.push_back({bands.back().wants, static_cast<double>(bands.back().clients), priority});
      }
      const std::string name = std::to_string(i);
      store.Put(HolderKind::kServer, name, std::array{Band{7, 1, 1000}});    // what it wanted before
      holders.back().first = store.Put(HolderKind::kServer, name, bands);
    }
    store.Put(HolderKind::kClient, "gone", std::array{Band{1, 1, 50}});
    store.Erase(HolderKind::kClient, "gone");
    store.KeepBands(true);
    const double capacity = static_cast<double>(prng.Below(600));
    const Values plain = Divide(Algorithm::kPriorityBand, capacity, demands);
    for (const auto& [slot, own] : holders) {
      double expected = 0;
      for (const std::size_t i : own) expected += plain[i];
      REQUIRE(Close(store.Share(Algorithm::kPriorityBand, capacity, slot), expected));
    }
  }
}

TEST_CASE("lease shares: there are at most 64 bands, and one more counts as the next lower one") {
  Store store(1);
  store.KeepBands(true);
  for (std::int64_t priority = 0; priority < 64; ++priority) {
    store.Put(HolderKind::kClient, std::to_string(priority), std::array{Band{10 * priority, 1, 1}});
  }
  const auto late = store.Put(HolderKind::kClient, "late", std::array{Band{15, 1, 1}});
  const auto lowest = store.Put(HolderKind::kClient, "lowest", std::array{Band{-5, 1, 1}});
  CHECK(store.Share(Algorithm::kPriorityBand, 63, late) == 0.5);        // with priority 10, below 62 others
  CHECK(store.Share(Algorithm::kPriorityBand, 64.5, lowest) == 0.25);  // with priority 0
}

// Two rounds, as in a published server, would give the second 43.
TEST_CASE("lease shares: fair_share goes on until nothing is left") {
  const Values shares = Of(Algorithm::kFairShare, 150, {2, 34, 24, 10, 6, 22, 64});
  CHECK(Close(Sum(shares), 150));
  CHECK(shares[1] == 34);
  CHECK(Close(shares[6], 52));
}

TEST_CASE("lease shares: random demands: what is given sums to what there is, and nobody gets more than he wants") {
  Prng prng(1);
  for (int round = 0; round < 2000; ++round) {
    const auto demands = RandomDemands(prng);
    const double capacity = static_cast<double>(prng.Below(2000));
    double wants = 0, weight = 0;
    for (const Demand& d : demands) wants += d.wants, weight += d.weight;
    CAPTURE(round, capacity);
    for (const Algorithm algorithm : kSharing) {
      CAPTURE(Name(algorithm));
      const Values shares = Divide(algorithm, capacity, demands);
      REQUIRE(Close(Sum(shares), std::min(wants, capacity)));
      for (std::size_t i = 0; i < demands.size(); ++i) {
        REQUIRE(shares[i] >= 0);
        REQUIRE(shares[i] <= demands[i].wants * (1 + 1e-12));
        if (algorithm == Algorithm::kProportionalScaling) continue;
        REQUIRE(shares[i] >= std::min(demands[i].wants, capacity / weight * demands[i].weight) * (1 - 1e-9));
      }
    }
  }
}

// The definition of max-min: whoever does not get all he wants has, for his weight, no less than anybody else.
TEST_CASE("lease shares: random demands: nobody could be given more fairly than by fair_share") {
  Prng prng(2);
  for (int round = 0; round < 1000; ++round) {
    const auto demands = RandomDemands(prng);
    const Values shares = Divide(Algorithm::kFairShare, static_cast<double>(prng.Below(2000)), demands);
    double most = 0;
    for (std::size_t i = 0; i < demands.size(); ++i) most = std::max(most, shares[i] / demands[i].weight);
    for (std::size_t i = 0; i < demands.size(); ++i) {
      if (shares[i] < demands[i].wants * (1 - 1e-9)) REQUIRE(shares[i] / demands[i].weight >= most * (1 - 1e-9));
    }
  }
}

TEST_CASE("lease shares: random demands: who wants more, or finds more, never gets less") {
  Prng prng(3);
  for (int round = 0; round < 1000; ++round) {
    auto demands = RandomDemands(prng);
    const double capacity = static_cast<double>(prng.Below(2000));
    const std::size_t who = prng.Below(demands.size());
    for (const Algorithm algorithm : kAll) {
      CAPTURE(round, Name(algorithm));
      const double before = Divide(algorithm, capacity, demands)[who];
      REQUIRE(Divide(algorithm, capacity + 10, demands)[who] >= before - 1e-9);
      auto more = demands;
      more[who].wants += 10;
      REQUIRE(Divide(algorithm, capacity, more)[who] >= before - 1e-9);
    }
  }
}

TEST_CASE("lease shares: the tree answers what the plain form does, after any changes") {
  Prng prng(4);
  DemandTree tree(5);
  std::vector<Demand> demands(200, Demand{-1});    // -1: not in the tree
  Values has(200);
  for (int round = 0; round < 5000; ++round) {
    const auto slot = static_cast<DemandTree::Slot>(prng.Below(demands.size()));
    Demand& demand = demands[slot];
    const Demand drawn{static_cast<double>(prng.Below(30)), static_cast<double>(1 + prng.Below(4))};
    if (demand.wants < 0) {
      tree.Insert(slot, demand = drawn);
      has[slot] = 0;
    } else if (prng.Below(4) == 0) {
      tree.Erase(slot);
      demand.wants = -1;
      has[slot] = 0;
    } else {
      tree.SetDemand(slot, demand = drawn);
      tree.SetHas(slot, has[slot] = static_cast<double>(prng.Below(10)));
    }
    if (round % 50 != 0) continue;
    std::vector<Demand> present;
    std::vector<DemandTree::Slot> slots;
    for (DemandTree::Slot i = 0; i < demands.size(); ++i) {
      if (demands[i].wants < 0) continue;
      present.push_back(demands[i]);
      slots.push_back(i);
    }
    REQUIRE(tree.sums().has == Sum(has));
    const double capacity = static_cast<double>(prng.Below(3000));
    for (const Algorithm algorithm : kAll) {
      const Values shares = Divide(algorithm, capacity, present);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        CAPTURE(round, capacity, Name(algorithm), present[i].wants, present[i].weight);
        REQUIRE(Close(tree.Share(algorithm, capacity, slots[i]), shares[i]));
      }
    }
  }
}

}    // namespace
}    // namespace dthrottle::lease
