#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <map>

#include "base/prng.h"
#include "limiter/limiter.h"
#include "limiter/shedder.h"
#include "rule/rulebook.h"
#include "shed/curve.h"
#include "shed/signal.h"
#include "tally/tally.h"
#include "test/support/host.h"

namespace dthrottle {
namespace {

using testing::Host;

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

// The source's example: 3 GiB are there, and throttling begins at 3e9 bytes.
constexpr double kLow = 3e9, kHigh = 3221225472, kMiddle = 3110612736;
const ShedCurve kCurve(kLow, kHigh);

bool Near(double a, double b) {
  return std::abs(a - b) <= 1e-9;
}

// ---- The curve ----

TEST_CASE("the curve has the source's values: 0.01, 0.5 and 0.99") {
  CHECK(Near(kCurve.Logistic(3e9), 0.01));
  CHECK(Near(kCurve.Logistic(3221225472), 0.99));
  CHECK(kCurve.Logistic(kMiddle) == 0.5);
  CHECK(Near(kCurve.RejectionProbability(3e9), 0.01));
  CHECK(kCurve.RejectionProbability(kMiddle) == 0.5);
  // The last byte before `high` is as good as `high` on the curve; at `high` the text's last equation says 1.
  CHECK(Near(kCurve.RejectionProbability(3221225471.999999), 0.99));
  CHECK(kCurve.RejectionProbability(3221225472) == 1);
}

TEST_CASE("nothing is rejected below the interval and everything above it") {
  for (const double x : {-1e300, -1.0, 0.0, 1e9, 2999999999.0, std::nextafter(3e9, 0.0)}) {
    CHECK(kCurve.RejectionProbability(x) == 0);
  }
  for (const double x : {3221225472.0, 3221225473.0, 2 * 3221225472.0, 1.8e19, 1e300}) {
    CHECK(kCurve.RejectionProbability(x) == 1);
  }
  CHECK(kCurve.RejectionProbability(std::numeric_limits<double>::quiet_NaN()) == 0);
  CHECK(kCurve.RejectionProbability(std::numeric_limits<double>::infinity()) == 1);
}

TEST_CASE("below the midpoint the curve mirrors what is above it, where the printed code underflows") {
  for (double d = 0; d < kHigh - kMiddle; d += 1e6 / 3) {
    REQUIRE(Near(kCurve.RejectionProbability(kMiddle - d) + kCurve.RejectionProbability(kMiddle + d), 1));
  }
}

TEST_CASE("the probability never falls while the signal rises") {
  double before = 0;
  for (double x = kLow - 1e6; x < kHigh + 1e6; x += 12345) {
    const double p = kCurve.RejectionProbability(x);
    REQUIRE(p >= before);
    REQUIRE(p <= 1);
    before = p;
  }
}

TEST_CASE("any interval will do: around zero, of one point, narrower than two numbers") {
  CHECK(ShedCurve(-10, 10).RejectionProbability(0) == 0.5);
  const ShedCurve step(7, 7);
  CHECK(step.RejectionProbability(6.999) == 0);
  CHECK(step.RejectionProbability(7) == 1);
  const ShedCurve narrow(1, std::nextafter(1.0, 2.0));
  const double p = narrow.RejectionProbability(1);
  CHECK((p >= 0 && p <= 1));
  CHECK(narrow.RejectionProbability(narrow.high()) == 1);
}

TEST_CASE("steps cut the interval into equal parts without gaps, and one step is the whole of it") {
  const auto whole = kCurve.Part(0, 1);
  CHECK((whole.low() == kLow && whole.high() == kHigh));
  for (std::size_t n = 1; n <= kShedPriorities; ++n) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto part = kCurve.Part(i, n);
      CHECK(part.low() == (i == 0 ? kLow : kCurve.Part(i - 1, n).high()));
      CHECK(part.high() - part.low() == Approx((kHigh - kLow) / static_cast<double>(n)));
    }
    CHECK(kCurve.Part(n - 1, n).high() == kHigh);
  }
}

TEST_CASE("a linear curve refuses in proportion, a step everything from the lower bound on, each in every part") {
  const ShedCurve linear(100, 200, CurveShape::kLinear), step(100, 200, CurveShape::kStep);
  CHECK(linear.RejectionProbability(99.9) == 0);
  CHECK(linear.RejectionProbability(100) == 0);
  CHECK(Near(linear.RejectionProbability(110), 0.1));
  CHECK(Near(linear.RejectionProbability(190), 0.9));
  CHECK(linear.RejectionProbability(201) == 1);
  CHECK(step.RejectionProbability(99.9) == 0);
  CHECK(step.RejectionProbability(100) == 1);
  CHECK(linear.Part(1, 2).RejectionProbability(175) == 0.5);
  CHECK(step.Part(1, 2).RejectionProbability(149) == 0);
  CHECK(step.Part(1, 2).RejectionProbability(150) == 1);
}

TEST_CASE("a million draws are within 4 sigma of the probability") {
  constexpr int kDraws = 1'000'000;
  for (const double p : {0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    CAPTURE(p);
    Prng prng(20220505);
    int shed = 0;
    for (int i = 0; i < kDraws; ++i) shed += Sheds(p, prng);
    CHECK(std::abs(shed - p * kDraws) <= 4 * std::sqrt(p * (1 - p) * kDraws));
  }
}

TEST_CASE("probability 0 never sheds, 1 always does, and neither draws") {
  Prng prng(1), untouched(1);
  for (int i = 0; i < 100'000; ++i) {
    REQUIRE_FALSE(Sheds(0, prng));
    REQUIRE(Sheds(1, prng));
  }
  CHECK_FALSE(Sheds(std::numeric_limits<double>::quiet_NaN(), prng));
  CHECK(prng.Next() == untouched.Next());
}

TEST_CASE("bounds are a share of the maximum, bytes, or numbers, and by default 90 and 98 percent") {
  using Kind = ShedBound::Kind;
  const auto curve = CurveOf(CurveShape::kLogistic, {Kind::kPercent, 50}, {Kind::kPercent, 75}, 4096);
  CHECK((curve.low() == 2048 && curve.high() == 3072));
  CHECK(CurveOf(CurveShape::kLogistic, {Kind::kBytes, 3e9}, {Kind::kBytes, kHigh}, 4096).low() == 3e9);
  CHECK(CurveOf(CurveShape::kLogistic, {Kind::kNumber, -2}, {Kind::kNumber, 5}, 0).high() == 5);
  const auto fallback = CurveOf(CurveShape::kLogistic, {}, {}, 1000);
  CHECK((fallback.low() == 900 && fallback.high() == 980));
}

// ---- In the limiter ----

// How many of `queries` for a tag ended in each way.
std::map<Verdict, int> Verdicts(Host& host, std::string_view tag, int queries) {
  std::map<Verdict, int> verdicts;
  for (int i = 0; i < queries; ++i) ++verdicts[host.Ask(tag, kNow)];
  return verdicts;
}

TEST_CASE("a shed query takes nothing from the bucket and records nothing") {
  Host host("[[rule]]\nname=\"r\"\nburst=10\nrate=1\nshed=true\n");
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kHigh);
  CHECK(Verdicts(host, "fresh", 50)[Verdict::kShed] == 50);
  CHECK(host.limiter->table().counts().tags == 0);
  host.limiter->shedder().Stop();
  CHECK(Verdicts(host, "a", 3)[Verdict::kServe] == 3);
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kHigh);
  CHECK(Verdicts(host, "a", 50)[Verdict::kShed] == 50);
  CHECK(host.Level("a", kNow) == 7);
  host.limiter->shedder().Stop();
  const auto after = Verdicts(host, "a", 10);
  CHECK((after.at(Verdict::kServe) == 7 && after.at(Verdict::kThrottle) == 3));
  const RuleTotals totals = host.limiter->tally().Totals(0);
  CHECK((totals.served == 10 && totals.throttled == 3 && totals.shed == 100 && totals.shadowed == 0));
  CHECK(host.limiter->tally().GrandTotals().shed == 100);
}

TEST_CASE("between the bounds as many are shed as the curve says") {
  Host host("[[rule]]\nname=\"r\"\nburst=1e9\nrate=100\nshed=true\n");
  constexpr int kQueries = 100'000;
  for (const double x : {kLow, kLow + (kHigh - kLow) / 3, kMiddle, 3221225471.0}) {
    host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, x);
    const double p = kCurve.RejectionProbability(x);
    const int shed = Verdicts(host, "a", kQueries)[Verdict::kShed];
    CAPTURE(x, p, shed);
    CHECK(std::abs(shed - p * kQueries) <= 4 * std::sqrt(p * (1 - p) * kQueries));
  }
}

TEST_CASE("a query that the limit refuses as well counts as shed") {
  Host host("[[rule]]\nname=\"r\"\nburst=1\nrate=1\nshed=true\n");
  host.Serves("a", kNow);
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kHigh);
  CHECK(host.Ask("a", kNow) == Verdict::kShed);
  host.limiter->shedder().Stop();
  CHECK(host.Ask("a", kNow) == Verdict::kThrottle);
}

TEST_CASE("only rules that say so are shed, and never those that are off") {
  Host host(
      "[[rule]]\nname=\"sheds\"\nmatch=\"s*\"\nburst=10\nrate=1\nshed=true\n"
      "[[rule]]\nname=\"off\"\nmatch=\"o*\"\nburst=10\nrate=1\nshed=true\nmode=\"off\"\n"
      "[[rule]]\nname=\"other\"\nburst=10\nrate=1\n"
      "[[override]]\ntag=\"s-partner\"\nburst=100\nrate=1\n"
      "[[override]]\ntag=\"s-exempt\"\nburst=100\nrate=1\nmode=\"off\"\n"
      "[[override]]\ntag=\"o-forced\"\nburst=100\nrate=1\nmode=\"enforce\"\n");
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kHigh);
  CHECK(host.Ask("s", kNow) == Verdict::kShed);
  CHECK(host.Ask("s-partner", kNow) == Verdict::kShed);
  CHECK(host.Ask("s-exempt", kNow) == Verdict::kServe);
  CHECK(host.Ask("o", kNow) == Verdict::kServe);
  CHECK(host.Ask("o-forced", kNow) == Verdict::kShed);
  CHECK(host.Ask("else", kNow) == Verdict::kServe);
}

TEST_CASE("in shadow mode what would be shed is counted, answered OK, and costs the tag nothing") {
  Host host("[[rule]]\nname=\"r\"\nburst=10\nrate=1\nshed=true\nmode=\"shadow\"\n");
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kHigh);
  CHECK(Verdicts(host, "a", 25)[Verdict::kServe] == 25);
  const RuleTotals totals = host.limiter->tally().Totals(0);
  CHECK((totals.served == 0 && totals.shed == 0 && totals.shadowed == 25));
  CHECK(host.Level("a", kNow) == 10);
}

constexpr const char* kThreeLevels =
    "[[rule]]\nname=\"crawler\"\nmatch=\"c*\"\nburst=10\nrate=1\nshed=true\n"
    "[[rule]]\nname=\"guest\"\nmatch=\"g*\"\nburst=10\nrate=1\nshed=true\nshed_priority=4\n"
    "[[rule]]\nname=\"member\"\nmatch=\"m*\"\nburst=10\nrate=1\nshed=true\nshed_priority=9\n"
    "[[rule]]\nname=\"admin\"\nburst=10\nrate=1\nshed_priority=7\n";

TEST_CASE("a priority is shed wholly before the next one is shed at all, and all are at the upper bound") {
  Host host(kThreeLevels);
  const auto probabilities = [&](double x) {
    host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), ShedCurve(0, 300), x);
    return std::vector{host.limiter->shedder().probability(0), host.limiter->shedder().probability(4),
                       host.limiter->shedder().probability(9)};
  };
  CHECK(probabilities(-1) == std::vector<double>{0, 0, 0});
  CHECK(probabilities(50) == std::vector<double>{0.5, 0, 0});
  CHECK(probabilities(150) == std::vector<double>{1, 0.5, 0});
  CHECK(probabilities(250) == std::vector<double>{1, 1, 0.5});
  CHECK(probabilities(300) == std::vector<double>{1, 1, 1});
  for (double x = 0; x < 310; x += 0.1) {
    const auto p = probabilities(x);
    REQUIRE((p[1] == 0 || p[0] == 1));
    REQUIRE((p[2] == 0 || p[1] == 1));
    REQUIRE(host.limiter->shedder().probability(7) == 0);    // of a rule that does not shed
  }
  probabilities(150);
  CHECK(host.Ask("crawler", kNow) == Verdict::kShed);
  CHECK(host.Ask("member", kNow) == Verdict::kServe);
  CHECK(host.Ask("admin", kNow) == Verdict::kServe);
}

TEST_CASE("one priority, whichever it is, has the curve of the source, and what is off does not count") {
  Host host(
      "[[rule]]\nname=\"r\"\nburst=10\nrate=1\nshed=true\nshed_priority=6\n"
      "[[rule]]\nname=\"off\"\nmatch=\"o*\"\nburst=10\nrate=1\nshed=true\nmode=\"off\"\n");
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kLow);
  CHECK(Near(host.limiter->shedder().probability(6), 0.01));
  CHECK(host.limiter->shedder().any());
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), kCurve, kLow - 1);
  CHECK_FALSE(host.limiter->shedder().any());
}

TEST_CASE("other rules are shed by their own priorities at the next measurement") {
  Host host(kThreeLevels);
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), ShedCurve(0, 300), 150);
  host.limiter->Adopt(testing::Rules("[[rule]]\nname=\"only\"\nburst=10\nrate=1\nshed=true\nshed_priority=4\n"));
  host.limiter->shedder().Shed(host.limiter->rules().shed_priorities(), ShedCurve(0, 300), 30);
  CHECK(host.limiter->shedder().probability(0) == 0);
  CHECK(host.limiter->shedder().probability(4) == ShedCurve(0, 300).RejectionProbability(30));
  host.limiter->shedder().Stop();
  CHECK(host.limiter->shedder().probability(4) == 0);
  CHECK(host.Ask("x", kNow) == Verdict::kServe);
}

}    // namespace
}    // namespace dthrottle
