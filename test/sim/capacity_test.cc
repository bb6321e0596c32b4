// Hosts and the parts of a capacity that they hold, over a network and hosts that misbehave: the parts never sum to
// more than the whole, and when the trouble is over they sum to the whole again.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "capacity/fairness.h"
#include "lab/capacity_fleet.h"
#include "test/sim/seeds.h"

namespace dthrottle {
namespace {

using lab::CapacityFleet;
using testing::Seeds;

double Unit(Prng& prng) {
  return static_cast<double>(prng.Below(1'000'001)) / 1e6;
}

std::uint32_t Any(const CapacityFleet::Options& o, Prng& prng) {
  return static_cast<std::uint32_t>(prng.Below(o.hosts));
}

void RandomDemands(CapacityFleet& fleet, const CapacityFleet::Options& o) {
  for (std::uint32_t h = 0; h < o.hosts; ++h) {
    for (std::uint32_t t = 0; t < o.tags; ++t) fleet.SetDemand(h, t, 2 * Unit(fleet.prng()) / o.hosts);
  }
}

// Trouble with a probability for each interval.
void Trouble(CapacityFleet& fleet, const CapacityFleet::Options& o, double probability, double until) {
  Prng& prng = fleet.prng();
  constexpr double kLasts[] = {1, 3, 8, 20, 40};
  const auto lasts = [&] { return kLasts[prng.Below(5)]; };
  while (fleet.now() < until) {
    fleet.Run(fleet.now() + 1);
    if (Unit(prng) < 0.05) fleet.SetDemand(Any(o, prng), static_cast<std::uint32_t>(prng.Below(o.tags)), Unit(prng));
    if (Unit(prng) >= probability) continue;
    const std::uint32_t host = Any(o, prng);
    switch (prng.Below(4)) {
      case 0:
        if (fleet.up(host)) fleet.Crash(host, lasts());
        break;
      case 2:
        if (fleet.up(host)) fleet.Upgrade(host, lasts());
        break;
      case 1: {
        std::set<std::uint32_t> side;
        for (std::uint32_t h = 0; h < o.hosts; ++h) {
          if (prng.Below(2) == 0) side.insert(h);
        }
        fleet.Cut(side, lasts());
        break;
      }
      default:
        fleet.Pause(host, lasts());
    }
  }
}

// Whether there comes a moment, for each tag, when the parts and the gifts under way are the whole. What rounding may
// leave out: two parts for each host, of the equal shares and of the reserves. `kept`: reserves of the dead.
bool BecomesWhole(CapacityFleet& fleet, const CapacityFleet::Options& o, Parts kept = 0) {
  std::set<std::uint32_t> open;
  for (std::uint32_t t = 0; t < o.tags; ++t) open.insert(t);
  for (int i = 0; i < 200 && !open.empty(); ++i) {
    std::erase_if(open,
                  [&](std::uint32_t t) { return fleet.Sum(t) + fleet.UnderWay(t) + kept + 2 * o.hosts >= kWhole; });
    fleet.Run(fleet.now() + 0.2);
  }
  return open.empty();
}

std::string Story(const CapacityFleet& fleet, const CapacityFleet::Options& o) {
  std::string text = fmt::format("at {}:", fleet.now());
  for (std::uint32_t t = 0; t < o.tags; ++t)
    text += fmt::format(" sum {:.6f}", static_cast<double>(fleet.Sum(t)) / static_cast<double>(kWhole));
  for (std::uint32_t h = 0; h < o.hosts; ++h) {
    const CapacityCounts c = fleet.Counts(h);
    text += fmt::format(
        "\n  {}: up {} generation {:x} epoch {:x} leased {} seats {} tags {} resets {} inherited {} fenced {} gifts "
        "{} junk {} shares",
        h, fleet.up(h), c.generation, c.epoch, c.leased, c.seats, c.tags, c.resets, c.inherited, c.fenced, c.gifts,
        c.junk);
    for (std::uint32_t t = 0; t < o.tags; ++t)
      text += fmt::format(" {:.4f}", static_cast<double>(fleet.Share(h, t)) / static_cast<double>(kWhole));
  }
  return text;
}

TEST_CASE("capacity: hosts begin with equal shares, and those that need it get it") {
  const CapacityFleet::Options o{.hosts = 8, .tags = 2};
  CapacityFleet fleet(o, 1);
  fleet.Run(60);
  INFO(Story(fleet, o));
  for (std::uint32_t h = 0; h < o.hosts; ++h) REQUIRE(fleet.Share(h, 0) >= kWhole / o.hosts - 2);
  REQUIRE(BecomesWhole(fleet, o));
  for (std::uint32_t h = 0; h < o.hosts; ++h) fleet.SetDemand(h, 0, h < 4 ? 0.3 : 0.1);
  fleet.Run(300);
  fleet.Calm();
  fleet.Run(320);
  INFO(Story(fleet, o));
  std::vector<double> throttled;
  for (std::uint32_t h = 0; h < o.hosts; ++h) {
    throttled.push_back(fleet.demand(h, 0) - static_cast<double>(fleet.Share(h, 0)) / static_cast<double>(kWhole));
  }
  CHECK(JainIndex(throttled) > 0.95);
  CHECK(BecomesWhole(fleet, o));    // of the second tag too, which nobody asked for
  CHECK(fleet.Counts(0).tags == 1);
  CHECK(fleet.violations() == 0);
}

TEST_CASE("capacity: one host that dies, is cut off or sleeps costs nothing in the end, and the others get its share") {
  for (const std::uint64_t seed : Seeds(60)) {
    CAPTURE(seed);
    const CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(4 + seed % 5), .tags = 2};
    CapacityFleet fleet(o, seed);
    RandomDemands(fleet, o);
    fleet.Run(60 + static_cast<double>(seed % 10) / 10);
    const std::uint32_t host = Any(o, fleet.prng());
    switch (seed % 4) {
      case 0:
        fleet.Crash(host, {});
        break;
      case 1:
        fleet.Crash(host, 15);
        break;
      case 2:
        fleet.Cut({host}, 25);
        break;
      default:
        fleet.Pause(host, 25);
    }
    fleet.Run(120);
    fleet.Calm();
    fleet.Run(160);
    INFO(Story(fleet, o));
    REQUIRE(fleet.violations() == 0);
    // What is kept for a dead host is not given to others.
    REQUIRE(BecomesWhole(fleet, o,
                         fleet.up(host) ? 0 : static_cast<Parts>(o.reserve * static_cast<double>(kWhole) / o.hosts)));
  }
}

TEST_CASE("capacity: hosts that are upgraded one after another stay who they are, and so do their parts") {
  for (const std::uint64_t seed : Seeds(10)) {
    CAPTURE(seed);
    const CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(2 + seed % 5), .tags = 2};
    CapacityFleet fleet(o, seed);
    RandomDemands(fleet, o);
    fleet.Run(100);
    std::vector<std::uint64_t> epochs;
    for (std::uint32_t h = 0; h < o.hosts; ++h) epochs.push_back(fleet.Counts(h).epoch);
    const std::uint64_t generation = fleet.Counts(0).generation;
    Parts least = kWhole;
    for (std::uint32_t i = 0; i < 3 * o.hosts; ++i) {
      fleet.Upgrade(i % o.hosts, Unit(fleet.prng()));
      for (int k = 0; k < 15; ++k) {
        fleet.Run(fleet.now() + 0.2);
        least = std::min(least, fleet.Sum(0) + fleet.UnderWay(0));
      }
    }
    fleet.Calm();
    fleet.Run(fleet.now() + 5);
    INFO(Story(fleet, o));
    REQUIRE(fleet.violations() == 0);
    for (std::uint32_t h = 0; h < o.hosts; ++h) {
      CHECK(fleet.Counts(h).epoch == epochs[h]);
      CHECK(fleet.Counts(h).generation == generation);
      CHECK(fleet.Counts(h).resets + fleet.Counts(h).fenced + fleet.Counts(h).inherited == 0);
    }
    CHECK(least + 2 * o.hosts >= kWhole);
    CHECK(BecomesWhole(fleet, o));
  }
}

TEST_CASE("capacity: whatever happens the parts never sum to more than the whole, and to the whole afterwards") {
  for (const std::uint64_t seed : Seeds(testing::kSanitized ? 50 : 150)) {
    CAPTURE(seed);
    const CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(3 + seed % 6), .tags = 2};
    CapacityFleet fleet(o, seed);
    RandomDemands(fleet, o);
    Trouble(fleet, o, 0.08, 200);
    REQUIRE(fleet.violations() == 0);
    fleet.Calm();
    fleet.Run(450);
    INFO(Story(fleet, o));
    REQUIRE(fleet.violations() == 0);
    CHECK(BecomesWhole(fleet, o));
    for (std::uint32_t h = 0; h < o.hosts; ++h) CHECK(fleet.Counts(h).overdrawn == 0);    // nobody lies
  }
}

// ---- Other members, other rules ----

TEST_CASE("capacity: members come and go one after another, and the whole is shared among those there are") {
  for (const std::uint64_t seed : Seeds(10)) {
    CAPTURE(seed);
    const CapacityFleet::Options o{.hosts = 6, .members = 5, .tags = 2};
    CapacityFleet fleet(o, seed);
    RandomDemands(fleet, o);
    fleet.Run(50);
    fleet.SetSettings(5, 6);
    fleet.Restart(5);
    CHECK(fleet.Share(5, 0) == 0);    // the others do not know of it yet
    for (std::uint32_t h = 0; h < 5; ++h) {
      fleet.SetSettings(h, 6);
      fleet.Run(fleet.now() + 3);
    }
    fleet.Run(120);
    {
      INFO(Story(fleet, o));
      CHECK(BecomesWhole(fleet, o));
      CHECK(fleet.Counts(5).seats == 1);
    }
    fleet.Crash(5, {});
    for (std::uint32_t h = 0; h < 5; ++h) {
      fleet.SetSettings(h, 5);
      fleet.Run(fleet.now() + 3);
    }
    fleet.Run(250);
    INFO(Story(fleet, o));
    CHECK(BecomesWhole(fleet, o));
    CHECK(fleet.violations() == 0);
  }
}

TEST_CASE("capacity: other rules begin a new generation when every host that is there has them") {
  const CapacityFleet::Options o{.hosts = 5, .tags = 1};
  CapacityFleet fleet(o, 1);
  fleet.SetDemand(0, 0, 1);
  fleet.Run(60);
  const std::uint64_t generation = fleet.Counts(0).generation;
  for (std::uint32_t h = 0; h < 4; ++h) fleet.SetSettings(h, 5, 7);
  fleet.Run(100);
  CHECK(fleet.Counts(0).generation == generation);
  fleet.SetSettings(4, 5, 7);
  fleet.Run(140);
  CHECK(fleet.Counts(0).generation > generation);
  CHECK(BecomesWhole(fleet, o));
  CHECK(fleet.violations() == 0);
}

TEST_CASE("capacity: two hosts alone cannot tell who is dead, and one has its reserve then") {
  const CapacityFleet::Options o{.hosts = 2, .tags = 1};
  CapacityFleet fleet(o, 3);
  fleet.SetDemand(0, 0, 1);
  fleet.Run(100);
  CHECK(BecomesWhole(fleet, o));
  fleet.Crash(1, {});
  fleet.Run(200);
  CHECK(fleet.Share(0, 0) == kWhole / 20);
  fleet.Restart(1);
  fleet.Run(300);
  CHECK(BecomesWhole(fleet, o));
  CHECK(fleet.violations() == 0);
}

TEST_CASE("capacity: what a host has pinned it gives to nobody, however little it is asked for itself") {
  for (const std::uint64_t seed : Seeds(5)) {
    CAPTURE(seed);
    CapacityFleet fleet({.hosts = 4, .tags = 1}, seed);
    fleet.SetDemand(0, 0, 1);
    fleet.Run(100);
    fleet.Calm();
    fleet.Run(120);
    const Parts pinned = fleet.Share(0, 0);
    REQUIRE(pinned > kWhole / 2);
    fleet.SetDemand(0, 0, 0.1);
    fleet.Pin(0, 0, pinned);
    for (std::uint32_t host = 1; host < 4; ++host) fleet.SetDemand(host, 0, 1);
    for (int i = 0; i < 60; ++i) {
      fleet.Run(fleet.now() + 1);
      CHECK(fleet.Share(0, 0) >= pinned);
      CHECK(fleet.Sum(0) <= kWhole);
    }
    fleet.Pin(0, 0, kWhole / 4);    // some of it has come back
    fleet.Run(fleet.now() + 60);
    CHECK(fleet.Share(0, 0) >= kWhole / 4);
    CHECK(fleet.Share(0, 0) < pinned / 2);
    fleet.Pin(0, 0, 0);
    fleet.Run(fleet.now() + 100);
    CHECK(fleet.Share(0, 0) < kWhole / 4);
  }
}

TEST_CASE("capacity: who looks at a tag is told by all what they may use, and then no more") {
  const CapacityFleet::Options o{.hosts = 8, .tags = 2};
  CapacityFleet fleet(o, 1);
  for (std::uint32_t h = 0; h < o.hosts; ++h) fleet.SetDemand(h, 0, h < 4 ? 0.3 : 0.1);
  fleet.Run(300);
  fleet.Calm();
  fleet.Run(320);
  CHECK(fleet.SumAsSaid(2, 0).hosts == 1);
  CHECK(fleet.SumAsSaid(2, 0).parts == fleet.Share(2, 0));
  const auto look = [&](std::uint32_t tag) {
    for (int i = 0; i < 4; ++i) {
      fleet.SumAsSaid(2, tag);
      fleet.Run(fleet.now() + 1);
    }
    return fleet.SumAsSaid(2, tag);
  };
  for (const std::uint32_t tag : {0U, 1U}) {    // the second one without a ledger anywhere
    CAPTURE(tag);
    const CapacitySum sum = look(tag);
    CHECK(sum.hosts == o.hosts);
    CHECK(std::abs(static_cast<double>(sum.parts) - static_cast<double>(fleet.Sum(tag))) < 0.001 * kWhole);
    CHECK(sum.age < std::chrono::seconds(3));
  }
  fleet.Crash(5, {});
  fleet.Run(fleet.now() + 60);
  CHECK(fleet.SumAsSaid(2, 0).hosts == 1);    // nobody looked
  const CapacitySum without = look(0);
  CHECK(without.hosts == o.hosts - 1);
  CHECK(static_cast<double>(without.parts) > 0.98 * kWhole);    // all but its reserve was inherited
}

TEST_CASE("capacity: a host alone has everything") {
  const CapacityFleet::Options o{.hosts = 1, .tags = 1};
  CapacityFleet fleet(o, 1);
  fleet.Run(10);
  CHECK(BecomesWhole(fleet, o));
}

TEST_CASE("capacity: a tag beyond the bound keeps to its equal share, and forgotten tags make room") {
  const CapacityFleet::Options o{.hosts = 4, .tags = 30, .tags_max = 20};
  CapacityFleet fleet(o, 1);
  fleet.Run(30);
  for (std::uint32_t t = 0; t < 20; ++t) fleet.SetDemand(0, t, 1);
  fleet.Run(100);
  fleet.SetDemand(0, 25, 1);
  fleet.Run(120);
  CHECK(fleet.Share(0, 25) == fleet.exchange(0).standing().other);
  CHECK(fleet.Counts(0).tags_refused > 0);
  CHECK(fleet.Counts(0).tags == 20);
  for (std::uint32_t t = 0; t < 19; ++t) fleet.SetDemand(0, t, 0);
  fleet.Run(400);
  CHECK(fleet.Counts(0).resets >= 2);
  CHECK(fleet.Counts(0).tags == 1);
  fleet.SetDemand(0, 25, 1);
  fleet.Run(500);
  CHECK(fleet.Share(0, 25) > kWhole / 2);
  CHECK(fleet.Share(0, 19) > kWhole / 2);
  CHECK(BecomesWhole(fleet, o));
  CHECK(fleet.violations() == 0);
}

// ---- What each rule is for: without it, the sum goes above the whole ----

// The first seed under which a sum is above the whole; 0: none of `seeds`.
std::uint64_t FirstViolation(const CapacityAblation& without, std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const CapacityFleet::Options o{.hosts = static_cast<std::uint32_t>(3 + seed % 6), .tags = 1, .without = without};
    CapacityFleet fleet(o, seed);
    RandomDemands(fleet, o);
    Trouble(fleet, o, 0.15, 200);
    if (fleet.violations() != 0) return seed;
  }
  return 0;
}

TEST_CASE("capacity: without leases a host that was taken for dead uses what another has inherited") {
  CHECK(FirstViolation({.lease = true}, 100) != 0);
}

TEST_CASE("capacity: without the log a dead host's gifts are given again by its best friend") {
  CHECK(FirstViolation({.log = true}, 400) != 0);
}

TEST_CASE("capacity: without waiting for promises two generations use the same capacity") {
  CHECK(FirstViolation({.promises = true}, 100) != 0);
}

TEST_CASE("capacity: without witnesses a best friend inherits from the living") {
  CHECK(FirstViolation({.fences = true}, 100) != 0);
}

TEST_CASE("capacity: without patience witnesses bury a host whose lease still runs") {
  CHECK(FirstViolation({.patience = true}, 400) != 0);
}

// Frames take up to three rounds. The largest part of a host that needs a little more than it has.
double LargestPart(const CapacityAblation& without) {
  using namespace std::chrono_literals;
  const CapacityFleet::Options o{
      .hosts = 2, .tags = 1, .lanes = {.delay = 1us, .jitter = 3s, .lossy = true}, .without = without};
  CapacityFleet fleet(o, 1);
  fleet.Run(60);
  fleet.SetDemand(0, 0, 0.9);
  fleet.SetDemand(1, 0, 0.5);
  Parts most = 0;
  while (fleet.now() < 200) {
    fleet.Run(fleet.now() + 0.5);
    most = std::max(most, fleet.Share(0, 0));
  }
  CHECK(fleet.violations() == 0);
  return static_cast<double>(most) / static_cast<double>(kWhole);
}

TEST_CASE(
    "capacity: with more than one gift under way a host is given what it needed some rounds ago, again and again") {
  constexpr double kFair = 0.7;    // both lack 0.2
  CHECK(LargestPart({}) < kFair + 0.02);
  CHECK(LargestPart({.one_gift = true}) > kFair + 0.05);
}

// Host 1 is cut off and its share inherited. If host 0 called it dead, that restarts next to it, with the heir cut off
// in turn: together they would be a majority.
bool ForgetfulWitness(bool forgetful, std::uint64_t seed) {
  const CapacityFleet::Options o{.hosts = 3, .tags = 1, .forgetful = forgetful};
  CapacityFleet fleet(o, seed);
  fleet.SetDemand(2, 0, 10);
  fleet.Run(20);
  fleet.SetDemand(1, 0, 10);
  fleet.Run(60);
  fleet.Cut({1}, 1000);
  fleet.Run(120);
  if (fleet.Counts(2).inherited == 0) return false;
  fleet.Crash(0, {});
  fleet.Cut({2}, 1000);
  fleet.Restart(0);
  fleet.Run(200);
  return fleet.violations() != 0;
}

TEST_CASE("capacity: without keeping promises a restarted witness brings a dead life back") {
  std::uint64_t violated = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    CHECK_FALSE(ForgetfulWitness(false, seed));
    violated += ForgetfulWitness(true, seed);
  }
  CHECK(violated > 0);
}

}    // namespace
}    // namespace dthrottle
