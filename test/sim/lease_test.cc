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

// Seconds from which on at least `part` of the limit is handed out, having been less at `after`.
double BackAt(const LeaseRun& run, double after, double part) {
  for (const LeaseSample& sample : run.samples) {
    if (sample.seconds > after && sample.has >= part * std::min(sample.wants, sample.limit)) return sample.seconds;
  }
  return 1e9;
}

TEST_CASE("lease scenario two: a master that is back before leases end costs nobody what he has") {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const LeaseRun run = RunLeases(DocumentedScenario("two"), seed);
    double learning = 0;
    for (const LeaseSample& sample : run.samples) {
      if (sample.seconds > 80) CHECK(sample.has > 0.5 * sample.limit);
      if (sample.seconds > 120 && sample.seconds < 200) {
        if (learning > 0) CHECK(sample.has == Approx(learning));    // nobody gets more while it learns
        learning = sample.has;
      }
    }
    CHECK(BackAt(run, 200, 0.95) <= 220);
  }
}

TEST_CASE("lease scenario three: a master that is back after leases have ended learns that nobody has anything") {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const LeaseRun run = RunLeases(DocumentedScenario("three"), seed);
    for (const LeaseSample& sample : run.samples) {
      if (sample.seconds > 185 && sample.seconds < 250) CHECK(sample.has == 0);
    }
    CHECK(BackAt(run, 250, 0.95) <= 270);
  }
}

TEST_CASE("lease scenario four: a region between root and clients costs little, and nothing above the capacity") {
  const LeaseScenario four = DocumentedScenario("four");
  CHECK(MedianOf(four, [](const LeaseRun& r) { return r.handed_out_of_wanted(); }) >= 0.95);
  CHECK(MedianOf(four, [](const LeaseRun& r) { return r.samples_above(); }) == 0);
}

TEST_CASE("lease scenario six: two clients that want more than all there is are cut, and never more is out") {
  LeaseScenario six = DocumentedScenario("six");
  six.lasts = 10min;
  CHECK(MedianOf(six, [](const LeaseRun& r) { return r.handed_out_of_limit(); }) >= 0.95);
  CHECK(MedianOf(six, [](const LeaseRun& r) { return r.peak(); }) <= 1.02);
}

TEST_CASE("lease scenarios: static gives each client its equal part, whatever others leave") {
  for (const char* name : {"one", "five"}) {
    LeaseScenario scenario = DocumentedScenario(name);
    scenario.resource.algorithm = lease::Algorithm::kStatic;
    scenario.lasts = 5min;
    CHECK(MedianOf(scenario, [](const LeaseRun& r) { return r.samples_above(); }) == 0);
    CHECK(MedianOf(scenario, [](const LeaseRun& r) { return r.handed_out_of_limit(); }) > 0.8);
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
