// How accurate limits are that hosts share, against one bucket for all: a part of what test/bench/accuracy_bench.cc
// measures, with few seeds and goals that leave room for that.
#include "test/support/accuracy.h"

#include <catch2/catch.hpp>

#include "limiter/watches.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

Accuracy Mean(const AccuracyOptions& options, int seeds = 2) {
  Accuracy sum;
  for (int seed = 1; seed <= seeds; ++seed) sum += MeasureAccuracy(options, static_cast<std::uint64_t>(seed));
  return sum /= seeds;
}

TEST_CASE("a forecast limit holds in every second, at twice the rate and at ten times") {
  const Accuracy twice = Mean({.hosts = 16, .workload = Poisson(2)});
  CHECK(twice.over < 3);
  CHECK(twice.under < 3);
  CHECK(std::abs(twice.longer) < 1);
  CHECK(twice.entries <= 1);
  const Accuracy ten = Mean({.hosts = 4, .workload = Poisson(10)});
  CHECK(ten.over < 1);
  CHECK(ten.under < 1);
}

TEST_CASE("bursts and demand that hops between hosts are forecast") {
  const Accuracy bursty = Mean({.hosts = 16, .workload = Bursty()});
  CHECK(bursty.over < 3);
  CHECK(bursty.under < 6);
  CHECK(std::abs(bursty.longer) < 5);
  CHECK(bursty.entries <= 1);
  const Accuracy hop = Mean({.hosts = 16, .workload = Hop()});
  CHECK(hop.over < 1.5);
  CHECK(hop.under < 1.5);
}

TEST_CASE("a client within its rate is not refused by forecasts") {
  const Accuracy a = Mean({.hosts = 16, .workload = Poisson(0.9)});
  CHECK(a.over == 0);
  CHECK(a.under < 0.1);
  CHECK(a.entries <= 1);
}

// A part of `accuracy_bench --within`: bursts and periods at which a client was refused more than one bucket refuses.
TEST_CASE("a client within its rate is served as one bucket serves it, at any burst and period") {
  struct Cell {
    std::size_t hosts;
    Duration period;
    double burst;
    std::uint32_t drift_ppm = 100;
  };
  for (const Cell& cell : {Cell{2, 1s, 30}, {4, 4s, 30}, {16, 4s, 10}, {64, 4s, 10}, {2, 4s, 100, 1000}}) {
    CAPTURE(cell.hosts, Seconds(cell.period), cell.burst, cell.drift_ppm);
    AccuracyOptions options{.hosts = cell.hosts, .workload = Poisson(0.9)};
    options.period = cell.period, options.burst = cell.burst, options.drift_ppm = cell.drift_ppm;
    const Accuracy a = Mean(options, cell.hosts > 16 ? 1 : 2);
    CHECK(a.served > a.ideal - 0.5);
  }
}

TEST_CASE("busy hosts with skewed demand hold a limit with few reports") {
  AccuracyOptions options{.hosts = 16, .workload = ZipfOverHosts(160), .period = 4s, .rate = 160, .burst = 160};
  const Accuracy a = Mean(options);
  CHECK(a.over + a.under < 6);
  CHECK(a.entries < 0.27);
}

TEST_CASE("eager reports beat periodic ones at the same number of entries") {
  const Accuracy plain = Mean({.hosts = 16, .scheme = Scheme::kPlain, .workload = Poisson(2)});
  const Accuracy eager = Mean({.hosts = 16, .scheme = Scheme::kEager, .workload = Poisson(2)});
  CHECK(eager.over + eager.under < (plain.over + plain.under) / 3);
  CHECK(eager.entries < 1.3);
}

TEST_CASE("a flash crowd on all hosts at once gets U of each") {
  AccuracyOptions options{.hosts = 16, .workload = Poisson(32)};
  options.burst_everywhere = true;
  options.max_unheard = 6;
  CHECK(Mean(options, 1).excess < 20);
}

TEST_CASE("lost reports cost a forecast limit nothing in the long run") {
  AccuracyOptions options{.hosts = 16, .workload = Poisson(2)};
  options.loss = 0.1;
  const Accuracy a = Mean(options);
  CHECK(std::abs(a.longer) < 0.5);
  CHECK(a.over < 4.5);
  CHECK(a.under < 4.5);
}

// What a certificate shows is no more than half as much again as there is, and no less than a fifth of it: it does not
// see what evens out while reports are under way, and with many hosts that is most of it.
void SeenIsNearTheTruth(const Accuracy& a) {
  for (const auto& [truth, seen] : {std::pair(a.over, a.over_seen), std::pair(a.under, a.under_seen)}) {
    CHECK(seen < 1.5 * truth + 0.5);
    CHECK(seen > truth / 5 - 0.1);
  }
}

TEST_CASE("a certificate of accuracy shows what there is, under every way of sharing") {
  for (const Scheme scheme : {Scheme::kPlain, Scheme::kEager, Scheme::kForecast}) {
    CAPTURE(static_cast<int>(scheme));
    SeenIsNearTheTruth(Mean({.hosts = 4, .scheme = scheme, .workload = Poisson(2)}));
    SeenIsNearTheTruth(Mean({.hosts = 16, .scheme = scheme, .workload = Poisson(10)}, 1));
  }
  const Accuracy within = Mean({.hosts = 4, .scheme = Scheme::kPlain, .workload = Poisson(0.9)});
  CHECK(within.over_seen == 0);
  CHECK(within.under_seen < 0.1);
}

TEST_CASE("a certificate orders ways of sharing as the truth does") {
  const Accuracy plain = Mean({.hosts = 8, .scheme = Scheme::kPlain, .workload = Poisson(2)}, 1);
  const Accuracy eager = Mean({.hosts = 8, .scheme = Scheme::kEager, .workload = Poisson(2)}, 1);
  const Accuracy forecast = Mean({.hosts = 8, .scheme = Scheme::kForecast, .workload = Poisson(2)}, 1);
  CHECK(forecast.over_seen < eager.over_seen);
  CHECK(eager.over_seen < plain.over_seen);
}

TEST_CASE("hosts never exceed the bound of a certificate") {
  for (const Scheme scheme : {Scheme::kPlain, Scheme::kForecast}) {
    CAPTURE(static_cast<int>(scheme));
    for (const std::size_t hosts : {2, 8}) {
      AccuracyOptions options{.hosts = hosts, .scheme = scheme, .workload = Bursty()};
      options.burst_everywhere = true;    // the worst that can come to them
      const Accuracy a = MeasureAccuracy(options, hosts);
      CHECK(a.excess < a.bound);
      CHECK(a.excess > a.bound / 20);    // or it says nothing
    }
  }
}

TEST_CASE("the certificate of one host shows nothing, because there is nothing") {
  const Accuracy alone = MeasureAccuracy({.hosts = 1, .scheme = Scheme::kPlain, .workload = Poisson(2)}, 1);
  CHECK(alone.over < 0.1);
  CHECK(alone.under < 0.1);
  CHECK(alone.over_seen == 0);
  CHECK(alone.under_seen == 0);
  CHECK(alone.bound == 0);
}

// What debit promises holds under faults too: whatever is lost or repeated, every hit is charged once, and in the end
// all hosts agree.
TEST_CASE("forecast hosts that are killed, paused and cut off agree in the end on every hit") {
  sim::FleetOptions options;
  options.hosts = 6;
  options.rules = Rules("[[rule]]\nname=\"default\"\nburst=100\nrate=20\nshare=\"forecast\"\nhorizon=\"10m\"\n");
  options.period = 1s;
  options.lanes = {.delay = 10ms, .lossy = true, .loss = 0.05, .duplication = 0.05, .overtaken = 0.05};
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    CAPTURE(seed);
    sim::Fleet fleet(options, seed);
    sim::Workload workload = Poisson(1.5);    // of each tag half as much again as it may
    workload.tags = 5;
    workload.from = sim::After(10s), workload.until = sim::After(60s);
    fleet.Add(workload);
    fleet.Inject({{.kind = sim::Fault::Kind::kSplit, .at = sim::After(20s), .lasts = 8s, .host = 1, .size = 2},
                  {.kind = sim::Fault::Kind::kPause, .at = sim::After(35s), .lasts = 3s, .host = 3}});
    fleet.Run(sim::After(75s));
    std::uint64_t urgent = 0;
    for (std::uint32_t i = 0; i < fleet.size(); ++i) urgent += fleet.host(i).exchange().Counts().urgent_entries;
    CHECK(urgent > 100);
    CHECK(fleet.CountUntold().lost == 0);
    CHECK(fleet.CountUntold().twice == 0);
    CHECK(fleet.ledger().invented() == 0);
    for (const sim::LevelError& e : fleet.LevelErrors())
      FAIL_CHECK(e.tag << " " << e.host << " " << e.level << " " << e.truth);
  }
}

}    // namespace
}    // namespace dthrottle::testing
