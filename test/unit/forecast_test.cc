#include "share/forecast/forecast.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/prng.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Pace kPace{.rate = 100, .burst = 100, .unheard_max = 1000, .root_hosts = 2, .period = 1};

Instant At(double seconds) {
  return FromNanoseconds(static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

// Asks `rate` times a second from `from` to `until` at one of hosts that hear nothing from it; how many were admitted.
int Drive(Forecast& f, double rate, double from, double until, Tokens bucket = 100) {
  int admitted = 0;
  for (int i = 1; i <= static_cast<int>(rate * (until - from) + 0.5); ++i) {
    const Instant now = At(from + i / rate);
    if (f.Stale(now)) f.Step(bucket, kPace, now);
    const bool admits = f.Admits(1);
    admits ? void(f.Took(1)) : f.Missed(1);
    admitted += admits;
  }
  return admitted;
}

TEST_CASE("what is foretold of a peer is taken from the level, and given back when its report comes") {
  Forecast f(50, 0, At(10));
  f.Step(50, kPace, At(10));
  f.Heard({3, 0, 40, At(10), At(10)}, kPace, At(10));
  f.Step(60, kPace, At(10.1));
  CHECK(f.level() == Approx(50 + 10 - 4));    // refill, less 40/s for 0.1 s: demand is below the rate, so p = 1
  f.Heard({3, 6, 40, At(10), At(10.1)}, kPace, At(10.1));
  CHECK(f.level() == Approx(54));    // it served 6 and not 4
  f.Heard({3, 2, 1000, At(10), At(10.05)}, kPace, At(10.1));
  CHECK(f.level() == Approx(52));    // late: hits count, what it says of its demand does not
  CHECK(f.peers_demand() == 40);
}

TEST_CASE("a level that is too high follows the bucket down, less what is foretold") {
  Forecast f(50, 0, At(0));
  f.Heard({3, 0, 40, At(0), At(0)}, kPace, At(0));
  for (int i = 1; i <= 40; ++i) {    // the bucket holds 40 when 20 of its tokens are foretold to be gone
    f.Step(40, kPace, At(i / 2.0));
    if (i < 40) f.Heard({3, 20, 40, At((i - 1) / 2.0), At(i / 2.0)}, kPace, At(i / 2.0));
  }
  CHECK(f.level() < 39);    // capped at what the bucket holds it would be 40
  CHECK(f.level() > 20);
}

TEST_CASE("hosts that ask for more than there is earn shares of their demand") {
  Forecast f(2, 0, At(0));
  Drive(f, 200, 0, 2, 2);
  f.Report(kPace, At(2));
  CHECK(f.demand() == Approx(200).epsilon(0.1));
  f.Heard({0, 12, 600, At(1.9), At(2)}, kPace, At(2));    // so many hits bear that out
  CHECK(f.share() < 0.2);
  // 100/s by 200 of 800
  CHECK(Drive(f, 200, 2, 4, 3) == Approx(50).margin(15));
}

TEST_CASE("hosts that ask for more than there is are not rationed while the level leaves time to hear of each other") {
  const auto served = [](Tokens level) {
    Forecast f(level, 0, At(0));
    f.Heard({0, 0, 400, At(0), At(0)}, kPace, At(0));
    for (int i = 0; i < 2; ++i) Drive(f, 100, i * 0.05, (i + 1) * 0.05, level), f.Report(kPace, At((i + 1) * 0.05));
    int admitted = 0;
    f.Step(level, kPace, At(0.12));
    for (; admitted < 30 && f.Admits(1); ++admitted) f.Took(1);
    return admitted;
  };
  CHECK(served(40) == 30);
  CHECK(served(10) < 6);    // what it has earned
}

TEST_CASE("what comes back is not announced as demand, and is in the level at once") {
  Forecast f(50, 0, At(0)), keeps(50, 0, At(0));
  for (int i = 1; i <= 300; ++i) {
    const Instant now = At(i / 100.0);
    for (Forecast* each : {&f, &keeps}) {
      if (each->Stale(now)) each->Step(50, kPace, now);
      each->Took(1);
    }
    if (i % 5 != 0) f.CameBack(1, kPace);    // so a fifth is used
  }
  CHECK(keeps.announces(kPace) == Approx(100).epsilon(0.1));
  CHECK(f.announces(kPace) == Approx(20).epsilon(0.3));
  const Tokens level = f.level();
  f.CameBack(7, kPace);
  CHECK(f.level() == Approx(level + 7));
  f.PeerGaveBack(5, kPace);
  CHECK(f.level() == Approx(level + 12));
}

TEST_CASE("a peer that is not heard any more loses its demand, and nothing that it served") {
  Forecast f(50, 0, At(0));
  f.Step(50, kPace, At(0.5));
  f.Heard({1, 40, 80, At(0), At(0.5)}, kPace, At(0.5));
  f.Step(45, kPace, At(1));
  f.ForgetSilent(1s, At(1));
  CHECK(f.peers_demand() == 80);
  f.Step(45, kPace, At(3.6));
  f.ForgetSilent(1s, At(3.6));
  CHECK(f.peers_demand() == 0);
  CHECK_FALSE(f.Active());
}

TEST_CASE("each peer loses its demand when it has not been heard for so long itself") {
  Forecast f(50, 0, At(0));
  const auto hear = [&](std::uint32_t peer, double demand, double when) {
    f.Step(50, kPace, At(when));
    f.Heard({peer, 0, demand, At(when), At(when)}, kPace, At(when));
  };
  const auto demand_at = [&](double when) {
    f.Step(50, kPace, At(when));
    f.ForgetSilent(1s, At(when));
    return f.peers_demand();
  };
  for (std::uint32_t peer = 0; peer < 5; ++peer) hear(peer, 10, 0.5 + 0.2 * peer);
  hear(0, 10, 2);    // again
  hear(9, 5, 2.1);
  for (std::uint32_t peer = 1; peer < 5; ++peer) {
    CHECK(demand_at(3.4 + 0.2 * peer) == Approx(65 - 10 * peer));
    CHECK(demand_at(3.59 + 0.2 * peer) == Approx(55 - 10 * peer));
  }
  CHECK(demand_at(4.9) == Approx(15));
  CHECK(demand_at(5.05) == Approx(5));
  CHECK(demand_at(5.15) == 0);
}

TEST_CASE("what a peer said of its demand too long ago means nothing") {
  Forecast f(50, 0, At(0));
  f.Step(50, kPace, At(10));
  f.Heard({1, 0, 40, At(6.9), At(6.9)}, kPace, At(10));
  CHECK(f.peers_demand() == 0);
  f.Heard({1, 0, 40, At(7.2), At(7.2)}, kPace, At(10));
  CHECK(f.peers_demand() == 40);
  f.Step(50, kPace, At(10.3));
  f.ForgetSilent(1s, At(10.3));
  CHECK(f.peers_demand() == 0);
}

TEST_CASE("no more than U is served that peers can neither have foretold nor heard of") {
  Pace pace = kPace;
  pace.unheard_max = 6;
  Forecast f(100, 0, At(0));
  const auto burst = [&](double t) {
    f.Step(100, pace, At(t));
    int admitted = 0;
    for (; admitted < 100 && f.Admits(1); ++admitted) f.Took(1);
    return admitted;
  };
  CHECK(burst(0.001) == 6);
  CHECK(f.Due());
  f.Report(pace, At(0.002));
  CHECK(burst(0.003) == 0);    // the report is on its way
  CHECK(burst(0.023) == 6);
}

// Asks for so much at once, again and again, until a report is due; what was served.
Tokens ServeUntilDue(Forecast& f, Cost cost, const Pace& pace, Instant from) {
  Tokens served = 0;
  Instant now = from;
  for (f.Step(100, pace, now); f.Admits(cost) && !f.Due(); f.Step(100, pace, now += 1ms)) {
    f.Took(cost);
    served += cost;
  }
  return served;
}

TEST_CASE("a report is due one query before U is reached, whatever queries cost, and a first one at half of U") {
  Pace pace = kPace;
  pace.unheard_max = 12;
  for (const Cost cost : {1, 3}) {
    Forecast f(100, 0, At(0));
    for (int i = 1; i <= 20; ++i) f.Report(pace, At(0));    // so the threshold is above U
    CHECK(ServeUntilDue(f, cost, pace, At(0.03)) == 6);
    CHECK(f.Admits(cost));
    CHECK_FALSE(f.held());
    f.Report(pace, At(0.05));    // announces a demand
    f.Step(100, pace, At(0.08));
    REQUIRE(f.demand() > 0);
    const Tokens foretold = f.demand() * 0.02, served = ServeUntilDue(f, cost, pace, At(0.08));
    CHECK(served >= pace.unheard_max - cost);
    CHECK(served <= pace.unheard_max + foretold);
  }
}

TEST_CASE("what was reported is heard some time after its own report, and not after the next one") {
  Pace pace = kPace;
  pace.unheard_max = 6;
  Forecast f(100, 0, At(0));
  const auto serve = [&](int queries, double t) {
    f.Step(100, pace, At(t));
    int served = 0;
    for (; served < queries && f.Admits(1); ++served) f.Took(1);
    f.Report(pace, At(t));
    return served;
  };
  REQUIRE(serve(3, 0.001) == 3);
  REQUIRE(serve(3, 0.011) == 3);
  CHECK(serve(6, 0.02) == 0);     // both reports are on their way
  CHECK(serve(6, 0.022) == 3);    // the second one is
  CHECK(serve(6, 0.032) == 3);
}

TEST_CASE("a report is due when reality leaves what peers foretell, and demand that ceases is such a case") {
  Forecast f(100, 0, At(0));
  Drive(f, 100, 0, 2);
  for (int i = 0; i < 10; ++i) f.Report(kPace, At(2));    // so its threshold is some tokens
  f.Heard({0, 0, 10, At(2), At(2)}, kPace, At(2));
  CHECK_FALSE(f.Due());
  Drive(f, 100, 2, 2.05);
  CHECK_FALSE(f.Due());    // as foretold
  f.Step(100, kPace, At(2.2));
  CHECK(f.Due());    // fifteen did not come
  CHECK(f.announces(kPace) < 50);
}

TEST_CASE("far from a limit that an owner keeps, all hosts together keep no more to themselves than is left") {
  constexpr Pace kFleet{.rate = 1000, .burst = 1000, .unheard_max = 100, .root_hosts = 10, .period = 1};
  const auto taken_until_due = [&](Tokens level, bool owned) {
    Forecast f(level, 0, At(0));
    f.Step(level, kFleet, At(1));
    if (owned) f.OwnerSaid(level, 0, {0, level}, kFleet, At(1));
    f.Report(kFleet, At(1));
    int taken = 0;
    for (f.Step(level, kFleet, At(1.1)); !f.Due() && f.Admits(1); ++taken) f.Took(1);
    CHECK(f.far() == (owned && level >= 500));
    return taken;
  };
  CHECK(taken_until_due(1000, true) == 9);
  CHECK(taken_until_due(600, true) == 6);    // 5.4 tokens each
  CHECK(taken_until_due(450, true) <= 2);
  CHECK(taken_until_due(1000, false) <= 2);
}

TEST_CASE("reports of a tag are spaced by a threshold: one a period, and those that found it are made up for") {
  Forecast f(1e9, 0, At(0));
  Prng prng(1);
  const Pace pace{.rate = 1e6, .burst = 1e6, .unheard_max = 1e9, .root_hosts = 4, .period = 1};
  int reports = 0;
  double t = 0;
  while (t < 100) {
    t += -std::log(1 - static_cast<double>(prng.Next() >> 11) * 0x1p-53) / 200;
    f.Step(1e6, pace, At(t));
    f.Admits(1) ? void(f.Took(1)) : f.Missed(1);
    if (!f.Due() || !f.MayReport(At(t))) continue;
    f.Report(pace, At(t));
    ++reports;
  }
  CHECK(reports > 90);
  CHECK(reports <= 100);
}

TEST_CASE("wasted refill pays for what was foretold of a peer, and not for a burst that nobody foresaw") {
  Forecast f(100, 0, At(0));
  f.Step(100, kPace, At(1));
  f.Heard({1, 40, 40, At(0), At(1)}, kPace, At(1));
  f.Step(200, kPace, At(2));    // full all the time, and 40 were foretold
  CHECK(f.Heard({1, 130, 40, At(1), At(2)}, kPace, At(2)).paid == 40);    // 90 more came at once
  Forecast idle(100, 0, At(0));
  idle.Step(300, kPace, At(2));
  const Tokens paid = idle.Heard({1, 50, 0, At(1), At(2)}, kPace, At(2)).paid.value();
  CHECK(paid <= 0.5);    // a peer that announces nothing is asked for half a token a second at most
  CHECK(paid > 0);
}

TEST_CASE("wasted refill pays for hits that waited for two periods") {
  Forecast f(100, 0, At(0));
  f.Step(100, kPace, At(1));
  f.Heard({1, 80, 80, At(0), At(1)}, kPace, At(1));
  for (int i = 1; i <= 5; ++i) f.Step(100 + 50 * i, kPace, At(1 + 0.5 * i));
  CHECK(f.Heard({1, 200, 80, At(1), At(3.5)}, kPace, At(3.5)).paid == Approx(200));
}

TEST_CASE("what is announced because of a query counts its cost as one token") {
  Forecast f(100, 0, At(0));
  Prng prng(1);
  Pace pace = kPace;
  pace.unheard_max = 4;    // so each query makes a report due
  double announced = 0;
  constexpr int kSteps = 100'000;
  for (int i = 1; i <= kSteps; ++i) {
    const Instant now = At(i / 100.0);
    f.Step(100, pace, now);
    if (f.Due() && f.MayReport(now)) f.Report(pace, now);
    announced += f.demand();
    if (prng.Next() % 1000 < 4 && f.Admits(5)) f.Took(5);    // 0.4 queries a second
  }
  CHECK(announced / kSteps == Approx(2).margin(0.8));    // with the whole cost it is 3.1
}

TEST_CASE("below the rate a level is believed higher than estimated, and at twice the rate it is not") {
  const auto served_at_zero = [](double demand) {
    Forecast f(0, 0, At(0));
    for (int i = 1; i <= 40; ++i) {    // borne out, so that it counts
      f.Step(demand / 10, kPace, At(i / 10.0));
      f.Heard({1, demand / 10, demand, At((i - 1) / 10.0), At(i / 10.0)}, kPace, At(i / 10.0));
    }
    f.Step(0, kPace, At(4.1));
    return f.Admits(1);
  };
  CHECK(served_at_zero(50));
  CHECK_FALSE(served_at_zero(200));
}

TEST_CASE("a demand that hits do not bear out counts for its peer's part of the rate only") {
  Forecast f(100, 0, At(0));
  const double lie = 1e12;
  double served = 0;
  for (int ms = 1; ms <= 20'000; ++ms) {    // asked for 40/s here, while a peer of three announces and serves nothing
    const Instant now = At(ms / 1e3);
    f.Step(100, kPace, now);
    if (ms % 1000 == 1) f.Report(kPace, now);
    if (ms % 250 == 0) CHECK_FALSE(f.Heard({1, 0, lie, now, now}, kPace, now).believed);
    if (ms % 25 != 0) continue;
    const bool admits = f.Admits(1);
    admits ? void(f.Took(1)) : f.Missed(1);
    served += admits;
  }
  CHECK(served == 800);
  CHECK(f.peers_demand() <= kPace.rate / 2);
  // As soon as hits bear it out it counts.
  for (int i = 1; i <= 3; ++i) {
    const Instant now = At(20 + i);
    f.Step(100, kPace, now);
    f.Heard({1, 200, 200, At(19 + i), now}, kPace, now);
  }
  CHECK(f.peers_demand() == 200);
}

}    // namespace
}    // namespace dthrottle
