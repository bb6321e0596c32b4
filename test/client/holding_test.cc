// What a client holds of a resource, in virtual time: when a unit may be taken, and what is asked for.
#include <catch2/catch.hpp>

#include <cmath>

#include "client/holding.h"

namespace {

constexpr std::int64_t kS = 1'000'000'000;

dthrottle_holding Holding(bool gauge, dthrottle_resource_options options = {}) {
  dthrottle_holding holding{};
  dthrottle_holding_init(&holding, gauge, &options, 0, 0);
  return holding;
}

dthrottle_resource_options In(dthrottle_lease_mode mode) {
  dthrottle_resource_options options{};
  options.mode = mode;
  return options;
}

bool Grant(dthrottle_holding& holding, double capacity, std::int64_t boot, std::uint64_t token = 1) {
  const dthrottle_lease_line lease{capacity, 2, 10, 5, token, 0};    // safe 2, for 10 s, renewed after 5 s
  return dthrottle_holding_grant(&holding, &lease, boot, boot);
}

double Capacity(const dthrottle_holding& holding, std::int64_t boot) {
  std::int64_t until = 0;
  return dthrottle_holding_capacity(&holding, boot, &until);
}

bool Take(dthrottle_holding& holding, std::int64_t boot) {
  std::int64_t next = 0;
  return dthrottle_holding_take(&holding, boot, &next);
}

// Asks for all of `calls` at `now`, each of which is served.
void Use(dthrottle_holding& holding, int calls, std::int64_t now) {
  for (int i = 0; i < calls; ++i) {
    dthrottle_holding_begin_wait(&holding, now);
    dthrottle_holding_end_wait(&holding, true, now);
  }
}

}    // namespace

TEST_CASE("units of a rate come evenly, and no more at once than are due in a tenth of a second") {
  dthrottle_holding rate = Holding(false);
  REQUIRE(Grant(rate, 50, 0));
  int at_once = 0;
  while (Take(rate, 2 * kS)) ++at_once;
  CHECK(at_once == 5);
  std::int64_t next = 0;
  CHECK_FALSE(dthrottle_holding_take(&rate, 2 * kS, &next));
  CHECK(std::abs(next - (2 * kS + kS / 50)) <= 2);
  CHECK(dthrottle_holding_take(&rate, next, &next));
}

TEST_CASE("a lease that has run out leaves what the mode says") {
  for (const auto& [mode, before, after] :
       {std::tuple{DTHROTTLE_PESSIMISTIC, 0.0, 0.0}, {DTHROTTLE_OPTIMISTIC, 1.0, 1.0}, {DTHROTTLE_SAFE, 0.0, 2.0}}) {
    dthrottle_holding rate = Holding(false, In(mode));
    CHECK(Capacity(rate, 0) == before);
    REQUIRE(Grant(rate, 50, 0));
    CHECK(Capacity(rate, 10 * kS - 1) == 50);
    CHECK(Capacity(rate, 10 * kS) == after);
  }
}

TEST_CASE("the level is filled by the lease until its end, and by the mode from there") {
  dthrottle_holding rate = Holding(false);
  REQUIRE(Grant(rate, 1, 0));
  REQUIRE(Take(rate, 1 * kS));
  CHECK_FALSE(Take(rate, 60 * kS));    // full at the end of the lease, but without a lease nothing may be taken
  REQUIRE(Grant(rate, 1, 60 * kS));
  CHECK(Take(rate, 60 * kS));
  CHECK_FALSE(Take(rate, 60 * kS));
}

TEST_CASE("a gauge has as many places as its capacity, and they come back") {
  dthrottle_holding gauge = Holding(true);
  std::int64_t next = 0;
  REQUIRE(Grant(gauge, 2, 0));
  CHECK(Take(gauge, 1));
  CHECK(Take(gauge, 1));
  CHECK_FALSE(dthrottle_holding_take(&gauge, 1, &next));
  CHECK(next == 10 * kS);    // when the lease ends
  --gauge.outstanding;
  CHECK(Take(gauge, 1));
}

TEST_CASE("a former master changes nothing while a lease of its successor holds") {
  dthrottle_holding rate = Holding(false);
  REQUIRE(Grant(rate, 50, 0, 7));
  CHECK_FALSE(Grant(rate, 90, 1 * kS, 6));
  CHECK(Capacity(rate, 1 * kS) == 50);
  CHECK(Grant(rate, 90, 10 * kS, 6));    // it has ended
  CHECK(Capacity(rate, 10 * kS) == 90);
}

TEST_CASE("what is asked for follows use: up at once where calls wait, down by half at a time") {
  dthrottle_holding rate = Holding(false);
  Use(rate, 100, kS / 2);
  dthrottle_holding_estimate(&rate, 1 * kS);
  CHECK(rate.wants == Approx(110));
  dthrottle_holding_begin_wait(&rate, 1 * kS);    // and waits for the whole second
  Use(rate, 100, 1 * kS);
  dthrottle_holding_estimate(&rate, 2 * kS);
  CHECK(rate.wants == Approx(200));
  dthrottle_holding_end_wait(&rate, false, 2 * kS);
  dthrottle_holding_estimate(&rate, 3 * kS);
  CHECK(rate.wants == Approx(100));
  dthrottle_holding_estimate(&rate, 4 * kS);
  CHECK(rate.wants == Approx(50));
}

TEST_CASE("an estimate stays below what was set as its most, and what was fixed is no estimate") {
  dthrottle_resource_options options{};
  options.wants_max = 30;
  dthrottle_holding bounded = Holding(false, options);
  Use(bounded, 100, 0);
  dthrottle_holding_estimate(&bounded, 1 * kS);
  CHECK(bounded.wants == 30);
  options = {};
  options.wants = 7;
  dthrottle_holding fixed = Holding(false, options);
  Use(fixed, 100, 0);
  dthrottle_holding_estimate(&fixed, 1 * kS);
  CHECK(fixed.wants == 7);
}

TEST_CASE("asking again may bring more where there is nothing, or where all that was wanted was granted") {
  dthrottle_holding rate = Holding(false);
  CHECK(dthrottle_holding_may_gain(&rate, 0));
  rate.wants = 50;
  REQUIRE(Grant(rate, 50, 0));
  CHECK(dthrottle_holding_may_gain(&rate, 1));
  rate.wants = 60;
  CHECK_FALSE(dthrottle_holding_may_gain(&rate, 1));
}
