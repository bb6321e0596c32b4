#include "bucket/bucket.h"

#include <catch2/catch.hpp>

#include "base/prng.h"
#include "test/support/debit.h"
#include "test/support/reference_bucket.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using testing::ReferenceBucket;

constexpr Instant kStart = FromNanoseconds(1'000'000'000);
const Shape kTenOne = Shape::From(10, 1);

TEST_CASE("a new bucket serves burst queries and then refuses") {
  Bucket bucket;
  for (int i = 0; i < 10; ++i) CHECK(bucket.Take(kTenOne, 1, kStart));
  CHECK_FALSE(bucket.Take(kTenOne, 1, kStart));
  CHECK(bucket.Level(kTenOne, kStart) == 0);
}

TEST_CASE("a refused query costs nothing") {
  Bucket bucket;
  for (int i = 0; i < 10; ++i) REQUIRE(bucket.Take(kTenOne, 1, kStart));
  for (int i = 0; i < 1000; ++i) REQUIRE_FALSE(bucket.Take(kTenOne, 1, kStart + 500ms));
  CHECK(bucket.Take(kTenOne, 1, kStart + 1s));
}

TEST_CASE("a token is there exactly one interval later and not a nanosecond sooner") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 10, kStart));
  CHECK_FALSE(bucket.Take(kTenOne, 1, kStart + 1s - 1ns));
  CHECK(bucket.ServesAt(kTenOne, 1, kStart) == kStart + 1s);
  CHECK(bucket.Take(kTenOne, 1, kStart + 1s));
}

TEST_CASE("what is asked for when a bucket serves again is true to the nanosecond") {
  const Shape shape = Shape::From(7, 3);
  Bucket bucket;
  REQUIRE(bucket.Take(shape, 7, kStart));
  for (Cost cost = 1; cost <= 7; ++cost) {
    Bucket early = bucket, on_time = bucket;
    const Instant at = bucket.ServesAt(shape, cost, kStart);
    CHECK_FALSE(early.Take(shape, cost, at - 1ns));
    CHECK(on_time.Take(shape, cost, at));
  }
}

TEST_CASE("a bucket never holds more than burst, however long it rests") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 3, kStart));
  CHECK(bucket.Level(kTenOne, kStart + 24h * 365 * 10) == 10);
  CHECK(bucket.IsFull(kStart + 3s));
  CHECK_FALSE(bucket.IsFull(kStart + 3s - 1ns));
}

TEST_CASE("a cost above one is all or nothing") {
  Bucket bucket;
  CHECK(bucket.Take(kTenOne, 7, kStart));
  CHECK_FALSE(bucket.Take(kTenOne, 4, kStart));
  CHECK(bucket.Level(kTenOne, kStart) == 3);
  CHECK(bucket.Take(kTenOne, 3, kStart));
  CHECK_FALSE(Bucket().Take(kTenOne, 11, kStart));
  CHECK_FALSE(Bucket().Take(kTenOne, std::numeric_limits<Cost>::max(), kStart));
}

TEST_CASE("a cost of zero peeks: it spends nothing and is served unless the bucket is in debt") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 10, kStart));
  CHECK(bucket.Take(kTenOne, 0, kStart));
  CHECK(bucket.Level(kTenOne, kStart) == 0);
  testing::Debit(bucket, kTenOne, 1, kStart, 100, kStart);
  CHECK_FALSE(bucket.Take(kTenOne, 0, kStart));
}

TEST_CASE("a peer's hits can push a bucket into debt") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 10, kStart));
  testing::Debit(bucket, kTenOne, 8, kStart + 5s, 100, kStart + 5s);
  CHECK(bucket.Level(kTenOne, kStart + 5s) == -3);
  CHECK_FALSE(bucket.Take(kTenOne, 1, kStart + 8s));
  CHECK(bucket.Take(kTenOne, 1, kStart + 9s));
}

// DThrottle README "DThrottle's Leaky Bucket". Its table is rounded to whole tokens at t = 9: with continuous refill
// the level is 0.9 there and the next query is served at 9.1.
TEST_CASE("the worked example of the DThrottle README") {
  const auto t = [](double s) { return kStart + Duration(static_cast<std::int64_t>(s * 1e9)); };
  Bucket a, b;
  for (int i = 0; i < 9; ++i) REQUIRE(a.Take(kTenOne, 1, t(0.1)));
  for (int i = 0; i < 8; ++i) REQUIRE(b.Take(kTenOne, 1, t(0.1)));
  CHECK(a.Level(kTenOne, t(0.1)) == 1);
  CHECK(b.Level(kTenOne, t(0.1)) == 2);
  CHECK(a.Take(kTenOne, 1, t(0.2)));
  CHECK_FALSE(a.Take(kTenOne, 1, t(0.2)));
  testing::Debit(a, kTenOne, 8, t(5.1), 100, t(5.1));
  testing::Debit(b, kTenOne, 10, t(5.1), 100, t(5.1));
  CHECK(a.Level(kTenOne, t(5.1)) == -3.0);
  CHECK(b.Level(kTenOne, t(5.1)) == -3.0);
  CHECK_FALSE(a.Take(kTenOne, 1, t(5.2)));
  CHECK(a.Level(kTenOne, t(9.0)) == Approx(0.9).epsilon(1e-12));
  CHECK_FALSE(a.Take(kTenOne, 1, t(9.0)));
  CHECK(a.Take(kTenOne, 1, t(9.1)));
}

TEST_CASE("debits commute") {
  Bucket a, b;
  testing::Debit(a, kTenOne, 3, kStart, 100, kStart);
  testing::Debit(a, kTenOne, 9, kStart, 100, kStart);
  testing::Debit(b, kTenOne, 9, kStart, 100, kStart);
  testing::Debit(b, kTenOne, 3, kStart, 100, kStart);
  CHECK(a.Level(kTenOne, kStart) == b.Level(kTenOne, kStart));
}

TEST_CASE("a late debit is not charged for refill that the cap threw away") {
  Bucket bucket;    // full and idle since the hits happened 20 s ago
  testing::Debit(bucket, kTenOne, 5, kStart, 100, kStart + 20s);
  CHECK(bucket.Level(kTenOne, kStart + 20s) == 10);
  testing::Debit(bucket, kTenOne, 5, kStart + 18s, 100, kStart + 20s);
  CHECK(bucket.Level(kTenOne, kStart + 20s) == 7);
}

TEST_CASE("debt has a floor") {
  Bucket bucket;
  testing::Debit(bucket, kTenOne, 1'000'000, kStart, 30, kStart);
  CHECK(bucket.Level(kTenOne, kStart) == -30);
  testing::Debit(bucket, kTenOne, std::numeric_limits<Cost>::max(), kStart, 30, kStart);
  CHECK(bucket.Level(kTenOne, kStart) == -30);
}

TEST_CASE("a floor that is lowered later does not forgive") {
  Bucket bucket;
  testing::Debit(bucket, kTenOne, 50, kStart, 40, kStart);
  testing::Debit(bucket, kTenOne, 1, kStart, 5, kStart);
  CHECK(bucket.Level(kTenOne, kStart) == -40);
}

TEST_CASE("credit gives tokens back, up to full") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 8, kStart));
  bucket.Credit(kTenOne, 3, kStart);
  CHECK(bucket.Level(kTenOne, kStart) == 5);
  for (int i = 0; i < 100; ++i) bucket.Credit(kTenOne, std::numeric_limits<Cost>::max(), kStart);
  CHECK(bucket.Level(kTenOne, kStart) == 10);
}

TEST_CASE("credit beyond full is no refill that was wasted, and takes none back") {
  constexpr Ticks kWindow = ToTicks(5s);
  Bucket bucket;
  Waste waste;
  REQUIRE(bucket.Take(kTenOne, 10, kStart, waste, kWindow));
  bucket.Credit(kTenOne, 1000, kStart + 1s);
  CHECK(bucket.Uncapped(kTenOne, kStart + 1s) == 10);
  REQUIRE(bucket.Take(kTenOne, 10, kStart + 1s, waste, kWindow));
  bucket.Debit(kTenOne, 10, kStart, ToTicks(100s), kStart + 1s, waste, kWindow);
  CHECK(bucket.Level(kTenOne, kStart + 1s) == Approx(-10).margin(1e-3));
  bucket.Credit(kTenOne, 10, kStart + 1s);
  bucket.Credit(kTenOne, 5, kStart + 13s);
  CHECK(bucket.Uncapped(kTenOne, kStart + 13s) == Approx(12).margin(1e-3));
}

TEST_CASE("another shape keeps the tokens that were spent") {
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 8, kStart));
  const Shape larger = Shape::From(100, 50);
  CHECK(bucket.Reshaped(kTenOne, larger, kStart).Level(larger, kStart) == Approx(92).margin(1e-6));
  const Shape slower = Shape::From(9, 0.1);
  CHECK(bucket.Reshaped(kTenOne, slower, kStart).Level(slower, kStart) == Approx(1).margin(1e-6));
}

TEST_CASE("a smaller shape makes no debt, and forgives none") {
  const Shape smaller = Shape::From(5, 0.1);
  Bucket bucket;
  REQUIRE(bucket.Take(kTenOne, 8, kStart));
  CHECK(bucket.Reshaped(kTenOne, smaller, kStart).Level(smaller, kStart) == Approx(0).margin(1e-6));
  testing::Debit(bucket, kTenOne, 5, kStart, 100, kStart);
  CHECK(bucket.Reshaped(kTenOne, smaller, kStart).Level(smaller, kStart) == Approx(-3).margin(1e-6));
}

TEST_CASE("how drained a bucket is compares between shapes") {
  const Shape slow = Shape::From(10, 0.001);
  Bucket fast_half, slow_tenth;
  REQUIRE(fast_half.Take(kTenOne, 5, kStart));
  REQUIRE(slow_tenth.Take(slow, 1, kStart));
  CHECK(fast_half.Drained(kTenOne, kStart) == Approx(0.5));
  CHECK(slow_tenth.Drained(slow, kStart) == Approx(0.1));
}

TEST_CASE("the interval is rounded so that a bucket is never slower than its rule") {
  for (const double rate : {3.0, 7.0, 0.3, 1e6 / 7, 12345.678, 9e8}) {
    const Shape shape = Shape::From(1, rate);
    const double exact = 1e9 * kTicksPerNanosecond / rate;
    CAPTURE(rate);
    CHECK(static_cast<double>(shape.interval) <= exact * (1 + 1e-15));
    CHECK(static_cast<double>(shape.interval) > exact - 1);
  }
}

TEST_CASE("levels and verdicts equal those of a bucket that replays every hit") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Prng prng(seed);
    const double burst =
        prng.Below(2) == 0 ? static_cast<double>(1 + prng.Below(50)) : 1 + static_cast<double>(prng.Below(1000)) / 16;
    const double rates[] = {0.01, 0.3, 1, 3, 7.5, 1000, 123456.789};
    const double rate = rates[prng.Below(std::size(rates))];
    const Shape shape = Shape::From(burst, rate);
    Bucket bucket;
    ReferenceBucket reference(shape);
    Instant now = kStart;
    CAPTURE(seed, burst, rate);
    for (int step = 0; step < 200; ++step) {
      now += Duration(static_cast<std::int64_t>(static_cast<double>(prng.Below(3000)) * 1e6 / rate));
      const auto n = static_cast<Cost>(prng.Below(4));
      if (prng.Below(10) < 8) {
        REQUIRE(bucket.Take(shape, n, now) == reference.Take(n, now));
      } else {
        testing::Debit(bucket, shape, n, now, 1e9, now);
        reference.Debit(n, now);
      }
      REQUIRE(bucket.Level(shape, now) == reference.Level(now));
    }
  }
}

TEST_CASE("late debits never forgive, and are exact for a bucket that rested since") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    const Shape shape = Shape::From(static_cast<double>(2 + prng.Below(20)), 1);
    Bucket bucket;
    ReferenceBucket reference(shape);
    Instant now = kStart, last = kStart;
    CAPTURE(seed);
    for (int step = 0; step < 60; ++step) {
      now += Duration(static_cast<std::int64_t>(prng.Below(4'000'000'000)));
      if (prng.Below(2) == 0) {
        const bool served = bucket.Take(shape, 1, now);
        if (served) {
          reference.Debit(1, now);
          last = now;
        }
      } else {
        const Instant when = now - Duration(static_cast<std::int64_t>(prng.Below(6'000'000'000)));
        const bool rested = when >= last;
        const bool equal_before = bucket.Level(shape, when) == reference.Level(when);
        testing::Debit(bucket, shape, 1, when, 1e9, now);
        reference.Debit(1, when);
        last = std::max(last, when);
        if (rested && equal_before) REQUIRE(bucket.Level(shape, now) == Approx(reference.Level(now)).margin(1e-9));
      }
      REQUIRE(bucket.Level(shape, now) <= reference.Level(now) + 1e-9);
    }
  }
}

TEST_CASE("the slowest rate that fits a burst fits it however it is rounded") {
  for (double burst = kBurstMin; burst < 400; burst += 0.1) CHECK(burst / RateMin(burst) <= kRefillSecondsMax);
}

}    // namespace
}    // namespace dthrottle
