// The formulas of share = "forecast", one by one.
#include "share/pace.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace dthrottle {
namespace {

constexpr Pace kPace{.rate = 100, .burst = 100, .unheard_max = 50, .root_hosts = 4, .period = 1};

Pace At(double period) {
  Pace pace = kPace;
  pace.period = period;
  return pace;
}

TEST_CASE("what is measured between reports is measured in periods, up to four seconds") {
  CHECK(At(0.5).demand_memory() == Approx(0.7));
  CHECK(At(1).demand_memory() == Approx(0.7));
  CHECK(At(4).demand_memory() == Approx(2.8));
  CHECK(At(60).demand_memory() == Approx(4));
  CHECK(At(1).relax() == Approx(0.15));
  CHECK(At(4).relax() == Approx(0.6));
}

TEST_CASE("U leaves room for three queries before one has to wait for a report") {
  CHECK(UnheardMaxOf(100, 4) == 50);
  CHECK(UnheardMaxOf(10, 8) == 4);
}

TEST_CASE("more is kept of what was earned where reports are rare, but never more than 0.3 of the burst by all hosts") {
  CHECK(At(1).CreditMax(true) == Approx(3));
  CHECK(At(1).CreditMax(false) == Approx(2));
  Pace dense = At(4);
  dense.rate = dense.burst = 2560, dense.root_hosts = 16;
  CHECK(dense.CreditMax(false) == Approx(3));
  dense.period = 1;
  CHECK(dense.CreditMax(false) == Approx(1.25));
  dense.period = 4, dense.burst = 1000;
  CHECK(dense.CreditMax(false) == Approx(1.25));    // 0.3 of it for each of 256 hosts is less
}

TEST_CASE(
    "a burst that is small for its rate takes many entries, one of a burst that fits no more than twice the usual") {
  Pace pace = kPace;    // 16 hosts
  CHECK(pace.EntriesAtRate() == Approx(1).margin(0.001));
  pace.burst = 5;
  CHECK(pace.EntriesAtRate() == Approx(std::hypot(1, 6.25 / 9)));
  pace.root_hosts = std::sqrt(2);
  CHECK(pace.EntriesAtRate() == Approx(std::hypot(1, 50.0 / 9)));
  pace.burst = BurstOfEntries(pace.part(), 2);
  CHECK(pace.burst == 10);
  CHECK(pace.EntriesAtRate() == Approx(std::hypot(1, 2)));
  pace.burst = 1;
  CHECK(pace.EntriesAtRate() == Approx(50).epsilon(0.001));
}

TEST_CASE("the margin grows with what is not known and with what is spare, and is nothing in overload") {
  const auto margin = [](double demand, Tokens foretold, Tokens delta = 2) {
    return Margin(kPace, {demand, foretold, delta});
  };
  // Variance 16 x 4 / 3, spare 100 + 2 sqrt(90 / 1.4) - 90.
  CHECK(margin(90, 1000) == Approx(2 * 64.0 / 3 * (10 + 2 * std::sqrt(90 / 1.4)) / 90));
  CHECK(margin(90, 5) == Approx(margin(90, 1000) * 5 * 3 / 64));    // no more is unknown than was foretold
  CHECK(margin(50, 1000) > margin(90, 1000));
  CHECK(margin(200, 1000) == 0);
  CHECK(margin(0, 1000) == 0);
  CHECK(margin(1, 1000, 40) == kPace.burst);
}

TEST_CASE("hosts are rationed near the limit, the earlier the more is asked for") {
  CHECK(RationedBelow(kPace, 110, 2) == Approx(12));    // a tenth of the burst
  CHECK(RationedBelow(kPace, 1000, 2) == Approx(2 + 0.33 * kPace.relax() * 900));
}

TEST_CASE("what is earned is the integral of the share") {
  for (const double demand : {50.0, 150.0, 1000.0}) {
    for (const Tokens level : {-200.0, 0.0, 5.0, 90.0}) {
      const Tokens target = 5;
      double sum = 0, l = level;
      constexpr double kStep = 1e-5;
      for (double t = 0; t < 0.3; t += kStep) {
        const double share = ShareOf(kPace, demand, l, target);
        sum += share * kStep;
        l += (kPace.rate - share * demand) * kStep;
      }
      CAPTURE(demand, level);
      CHECK(Earned(kPace, demand, level, target, 0.3) == Approx(sum).margin(1e-3));
    }
  }
}

}    // namespace
}    // namespace dthrottle
