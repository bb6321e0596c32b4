// One leaky bucket in one 64-bit value.
//
// A bucket holds at most *burst* tokens and gains *rate* tokens a second. Serving takes tokens; a peer's report
// debits what the peer served, without asking, so the level may go below zero (debt), down to a floor that only a
// wrong peer can reach. The class knows neither tags nor peers nor clocks.
//
// The value is the instant at which the bucket will be full: level = burst - (full_at - now) * rate. That is the
// virtual scheduling form of GCRA (ITU-T I.371), which is the leaky bucket exactly: nothing has to be updated while
// time passes, a bucket that is full needs no memory at all, and two debits commute. Compare DThrottle README
// "Textbook Leaky Bucket Algorithm".
//
// The interval between tokens is rounded down to ticks of 1/16 ns, so a bucket is never slower than its rule says and
// faster by less than one tick a token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "base/time.h"
#include "base/tokens.h"
#include "bucket/ticks.h"
#include "bucket/waste.h"

namespace dthrottle {

// What settings may ask for; together they keep every sum of ticks far from overflow.
inline constexpr double kBurstMin = 1, kBurstMax = 1e9;       // tokens
inline constexpr double kRateMin = 1e-6, kRateMax = 1e9;      // tokens/s
inline constexpr double kRefillSecondsMax = 366.0 * 86400;    // burst / rate

// The slowest rate that fits a burst, tokens/s. The quotient may have been rounded down, and then burst / rate is too large.
inline double RateMin(Tokens burst) {
  const double rate = std::max(burst / kRefillSecondsMax, kRateMin);
  return burst / rate <= kRefillSecondsMax ? rate : std::nextafter(rate, kRateMax);
}

// Which limit a bucket is under: an index into the rulebook in force.
using LimitIndex = std::uint32_t;

// Burst and rate, as a bucket computes with them.
struct Shape {
  Ticks interval;    // between two tokens of refill
  Ticks depth;       // from empty to full: burst x interval

  // REQUIRES: burst, rate and burst / rate within the bounds above.
  static Shape From(Tokens burst, double rate_per_second) {
    DT_CHECK(burst >= kBurstMin && burst <= kBurstMax && rate_per_second >= kRateMin && rate_per_second <= kRateMax);
    DT_CHECK(burst / rate_per_second <= kRefillSecondsMax);
    const auto interval = static_cast<Ticks>(std::floor(1e9 * kTicksPerNanosecond / rate_per_second));
    const auto whole = static_cast<Ticks>(burst);
    const double part = burst - static_cast<double>(whole);
    return {interval, whole * interval + std::llround(part * static_cast<double>(interval))};
  }

  // Whether a full bucket has as many tokens. Every bucket has one.
  bool Holds(Cost cost) const { return cost <= 1 || cost <= depth / interval; }

  Tokens burst() const { return static_cast<double>(depth) / static_cast<double>(interval); }
  double rate() const { return 1e9 * kTicksPerNanosecond / static_cast<double>(interval); }    // tokens/s

  friend bool operator==(const Shape&, const Shape&) = default;
};

// How long `tokens` take to refill, or as good as for ever.
inline Ticks TicksOf(Tokens tokens, const Shape& shape) {
  return static_cast<Ticks>(std::min(tokens * static_cast<double>(shape.interval), 0x1p61));
}

class Bucket {
 public:
  constexpr Bucket() = default;    // full, since before anybody can ask

  // Serves if the level is at least `cost`, and then spends it. A cost of 0 spends nothing, and is served unless there
  // is debt.
  [[nodiscard]] bool Take(const Shape& shape, Cost cost, Instant now) {
    const Ticks at = ToTicks(now), price = Price(shape, cost);
    const Ticks spent = std::max<Ticks>(full_at_ - at, 0);    // refill beyond full is lost
    if (spent > shape.depth - price) return false;
    if (price != 0) full_at_ = at + spent + price;
    return true;
  }

  // The same where late debits may follow: keeps the account of wasted refill. `window` as in Waste::Rested.
  [[nodiscard]] bool Take(const Shape& shape, Cost cost, Instant now, Waste& waste, Ticks window) {
    const Ticks full_at = full_at_;
    if (!Take(shape, cost, now)) return false;
    if (cost != 0 && full_at < ToTicks(now)) waste.Rested(full_at, ToTicks(now), window);
    return true;
  }

  // Subtracts `hits` that were served elsewhere at `when`, as if they had been charged then: refill wasted since pays
  // for them first (waste.h). The debt ends up at most `debt_max`, in ticks: tokens x shape.interval. Returns what that
  // leaves uncharged, in ticks.
  Ticks Debit(const Shape& shape, std::uint64_t hits, Instant when, Ticks debt_max, Instant now, Waste& waste,
             Ticks window) {
    const Ticks at = ToTicks(when), price = Price(shape, hits);
    Ticks charged = std::max(full_at_, at) + price;
    if (full_at_ <= at) {
      waste.Rested(full_at_, at, window);
    } else {
      charged -= waste.Pay(price, at, std::min(full_at_, ToTicks(now)), window);
    }
    return SetWithFloor(shape, charged, debt_max, now);
  }

  // The same of `hits` of which wasted refill pays for `paid`, by a better account than the bucket's own.
  Ticks DebitPaid(const Shape& shape, std::uint64_t hits, Tokens paid, Ticks debt_max, Instant now, Waste& waste,
                 Ticks window) {
    const Ticks at = ToTicks(now), price = Price(shape, hits), refill = std::min(price, TicksOf(paid, shape));
    if (full_at_ <= at) {
      waste.Rested(full_at_, at, window);
    } else {
      static_cast<void>(waste.Pay(refill, at - refill, at, window));    // so that it pays for nothing else
    }
    return SetWithFloor(shape, std::max(full_at_, at) + price - refill, debt_max, now);
  }

  // Takes over a peer's bucket that will be full at `full_at`, if it is emptier, after `hits` that the peer has not
  // heard of yet. The debt is bounded as above.
  void Merge(const Shape& shape, Instant full_at, std::uint64_t hits, Ticks debt_max, Instant now) {
    const Ticks theirs = std::max(ToTicks(full_at), ToTicks(now)) + Price(shape, hits);
    if (theirs > full_at_) SetWithFloor(shape, theirs, debt_max, now);
  }

  // Gives back `tokens`; beyond full they are lost, and are no refill that was wasted: the bucket is full from now on.
  void Credit(const Shape& shape, Cost tokens, Instant now) { Credit(Price(shape, tokens), now); }
  void Credit(Ticks ticks, Instant now) { full_at_ = std::max(full_at_ - ticks, std::min(full_at_, ToTicks(now))); }

  // Spends `tokens` without asking. The level falls below zero if there are fewer: refill pays for them first.
  void Charge(const Shape& shape, Cost tokens, Instant now) {
    full_at_ = std::max(full_at_, ToTicks(now)) + Price(shape, tokens);
  }

  // Keeps room for tokens that were lent out of the bucket, which cost so many ticks: it is that far from full.
  void LeaveRoom(Ticks ticks, Instant now) { full_at_ = std::max(full_at_, ToTicks(now) + ticks); }

  // Tokens now; negative means debt.
  [[nodiscard]] Tokens Level(const Shape& shape, Instant now) const {
    return static_cast<double>(shape.depth - Spent(now)) / static_cast<double>(shape.interval);
  }

  // The level if no refill were lost: above the burst by what the bucket has wasted since it was charged.
  [[nodiscard]] Tokens Uncapped(const Shape& shape, Instant now) const {
    return static_cast<double>(shape.depth - (full_at_ - ToTicks(now))) / static_cast<double>(shape.interval);
  }

  // Whole tokens now; none in debt.
  [[nodiscard]] std::int64_t WholeTokens(const Shape& shape, Instant now) const {
    return std::max<Ticks>(shape.depth - Spent(now), 0) / shape.interval;
  }

  // The first instant at which a query of `cost` would be served if nothing else happens; `now` if it would be now.
  // REQUIRES: cost <= burst.
  [[nodiscard]] Instant ServesAt(const Shape& shape, Cost cost, Instant now) const {
    const Ticks wait = Spent(now) - (shape.depth - Price(shape, cost));
    return now + Duration((std::max<Ticks>(wait, 0) + kTicksPerNanosecond - 1) / kTicksPerNanosecond);
  }

  // How empty: 0 and less is full, 1 is a level of zero, above 1 is debt. Comparable between shapes.
  [[nodiscard]] double Drained(const Shape& shape, Instant now) const {
    return static_cast<double>(full_at_ - ToTicks(now)) / static_cast<double>(shape.depth);
  }

  // Whether less than a fifth of the burst is left.
  [[nodiscard]] bool IsNearLimit(const Shape& shape, Instant now) const {
    return full_at_ - ToTicks(now) > shape.depth - shape.depth / 5;
  }

  // How far the level is below zero, in ticks: tokens x shape.interval.
  [[nodiscard]] Ticks Debt(const Shape& shape, Instant now) const {
    return std::max<Ticks>(Spent(now) - shape.depth, 0);
  }

  [[nodiscard]] bool IsFull(Instant now) const { return full_at_ <= ToTicks(now); }

  // Time until full; zero when it is.
  [[nodiscard]] Duration UntilFull(Instant now) const {
    return Duration((Spent(now) + kTicksPerNanosecond - 1) / kTicksPerNanosecond);
  }

  // The same tokens spent, under another shape: what a reload does to a bucket. Tokens that it had and that the other
  // shape has no room for make no debt: the level falls to zero, or stays the debt that it was.
  [[nodiscard]] Bucket Reshaped(const Shape& from, const Shape& to, Instant now) const {
    Bucket result;
    const auto in_ticks = [&](Ticks of_from) {
      return static_cast<double>(of_from) / static_cast<double>(from.interval) * static_cast<double>(to.interval);
    };
    const double empty = static_cast<double>(to.depth) + in_ticks(Debt(from, now));
    const double spent = std::min({in_ticks(Spent(now)), empty, static_cast<double>(kFarTicks)});
    result.full_at_ = ToTicks(now) + static_cast<Ticks>(std::ceil(spent));
    return result;
  }

  // The same tokens left, as far as the other shape has room for them: what becomes of a bucket whose part of a limit
  // is another one from now on. Room that comes with a larger part is empty.
  [[nodiscard]] Bucket WithTokensOf(const Shape& from, const Shape& to, Instant now) const {
    const double left = std::min(Level(from, now) * static_cast<double>(to.interval), static_cast<double>(to.depth));
    const double spent = std::min(static_cast<double>(to.depth) - left, static_cast<double>(kFarTicks));
    Bucket result;
    result.full_at_ = ToTicks(now) + static_cast<Ticks>(std::ceil(spent));
    return result;
  }

  // The same bucket without its debt, for one whose former shape is unknown.
  [[nodiscard]] Bucket WithoutDebt(const Shape& shape, Instant now) const {
    Bucket result;
    result.full_at_ = ToTicks(now) + std::min(Spent(now), shape.depth);
    return result;
  }

 private:
  static constexpr Ticks kFarTicks = std::numeric_limits<Ticks>::max() / 4;
  static constexpr Ticks kLongAgo = std::numeric_limits<Ticks>::min() / 4;

  Ticks Spent(Instant now) const { return std::max<Ticks>(full_at_ - ToTicks(now), 0); }

  // Saturates, so that an absurd cost is refused and an absurd debit ends at the floor.
  static Ticks Price(const Shape& shape, std::uint64_t cost) {
    Ticks price;
    return __builtin_mul_overflow(shape.interval, cost, &price) ? kFarTicks : std::min(price, kFarTicks);
  }

  // Debt does not go beyond the floor, and what lay beyond it before stays. Returns what the floor forgives.
  Ticks SetWithFloor(const Shape& shape, Ticks full_at, Ticks debt_max, Instant now) {
    const Ticks floor = ToTicks(now) + shape.depth + std::min(debt_max, kFarTicks);
    full_at_ = std::min(full_at, std::max(full_at_, floor));
    return full_at - full_at_;
  }

  Ticks full_at_ = kLongAgo;
};

static_assert(sizeof(Bucket) == 8);

}    // namespace dthrottle
