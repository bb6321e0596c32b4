// How fast a tag is asked for.
#include "share/forecast/demand_meter.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/prng.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

// Poisson queries of one token for 100 s; how often the mean leaps by half in a step although nothing has changed.
int FalseAlarms(double rate) {
  DemandMeter meter(Instant{});
  Prng prng(1);
  int alarms = 0;
  double before = rate;
  Duration next{};
  for (int ms = 1; ms <= 100'000; ++ms) {
    const Instant now(ms * 1ms);
    Instant asked_by{};
    for (; next < ms * 1ms; asked_by = Instant(next)) {
      meter.Asked(1);
      const double uniform = 1 - static_cast<double>(prng.Next() >> 11) * 0x1p-53;
      next += DurationOf(-std::log(uniform) / rate);
    }
    meter.Step(0.001, 0.7, 1, asked_by, now);
    alarms += ms > 1000 && std::abs(meter.seen() - before) > before / 2;
    before = meter.seen();
  }
  return alarms;
}

TEST_CASE("chance is not taken for a change of demand, however busy a tag is") {
  for (const double rate : {100, 1000}) {
    CAPTURE(rate);
    CHECK(FalseAlarms(rate) <= 8);    // of some 2; 57 where what is unlikely is the same at any rate
  }
}

}    // namespace
}    // namespace dthrottle
