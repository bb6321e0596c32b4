// Doorman's scenarios over the shipped lease server: few seeds here, `dthrottle-sim lease --seeds 100` for the figures.
#include <catch2/catch.hpp>

#include <algorithm>

#include "lab/lease_fleet.h"

namespace dthrottle::lab {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeeds = 8;

template <class Figure>
double MedianOf(const LeaseScenario& scenario, Figure figure) {
  std::vector<double> values;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    values.push_back(static_cast<double>(figure(RunLeases(scenario, seed))));
  }
  std::nth_element(values.begin(), values.begin() + kSeeds / 2, values.end());
  return values[kSeeds / 2];
}

TEST_CASE("lease scenario one: nothing before learning is over, then 99 % of what is wanted, and never more than 500") {
  const LeaseScenario one = DocumentedScenario("one");
  CHECK(MedianOf(one, [](const LeaseRun& r) { return r.handed_out_of_wanted(); }) >= 0.985);
  CHECK(MedianOf(one, [](const LeaseRun& r) { return r.samples_above(); }) == 0);
  for (const LeaseSample& sample : RunLeases(one, 1).samples) {
    if (sample.seconds <= 60) CHECK(sample.has == 0);
  }
}

TEST_CASE("lease scenario five: at least 96.8 % of the capacity is handed out") {
  LeaseScenario five = DocumentedScenario("five");
  five.lasts = 20min;
  CHECK(MedianOf(five, [](const LeaseRun& r) { return r.handed_out_of_limit(); }) >= 0.968);
}

TEST_CASE("lease scenario seven: mishaps cost some capacity, and hardly ever more is out than there is") {
  const LeaseScenario seven = DocumentedScenario("seven");
  CHECK(MedianOf(seven, [](const LeaseRun& r) { return r.handed_out_of_wanted(); }) >= 0.96);
  CHECK(MedianOf(seven, [](const LeaseRun& r) { return r.samples_above(); }) <= 9);
  CHECK(MedianOf(seven, [](const LeaseRun& r) { return r.peak(); }) <= 1.03);
}

TEST_CASE("lease scenario seven, as documented: a new master's parent gives away what its clients are using") {
  LeaseScenario seven = DocumentedScenario("seven");
  seven.tells_learning = false;
  CHECK(MedianOf(seven, [](const LeaseRun& r) { return r.peak(); }) > 1.05);
}

TEST_CASE("lease scenario seven, strict: never is more out than there is") {
  LeaseScenario seven = DocumentedScenario("seven");
  seven.resource.strict = true;
  for (const auto algorithm : {lease::Algorithm::kFairShare, lease::Algorithm::kProportionalScaling}) {
    seven.resource.algorithm = algorithm;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      CAPTURE(seed);
      CHECK(RunLeases(seven, seed).samples_above() == 0);
    }
  }
}

TEST_CASE("lease scenarios: a seed is a run") {
  const LeaseScenario seven = DocumentedScenario("seven");
  const auto has = [&](std::uint64_t seed) { return RunLeases(seven, seed).samples.back().has; };
  CHECK(has(3) == has(3));
  CHECK(RunLeases(seven, 3).incidents.front().what != RunLeases(seven, 5).incidents.front().what);
}

}    // namespace
}    // namespace dthrottle::lab
