// How much refill a bucket has thrown away lately because it was full.
//
// A report says what a peer served up to a period ago. Had those hits been charged when they happened, refill that was
// thrown away since would have paid for them; so a late debit is paid out of that refill first, and only the rest comes
// off the level (level -= max(0, hits - refill wasted since then)). Without this a client that stays
// within its rate would be refused whenever burst < rate x period: its bucket is full most of the time, and then a
// period's worth of hits arrives at once.
//
// Kept in eight bytes: how much, and since when. Where within that time the waste lay is not kept: a debit may use all
// that is left of the last two windows, up to the time since it happened. That errs in the client's favour, by two
// windows of refill at most, once after each change from little use to too much. A bucket that has rested for a whole
// window starts over, so that a burst after a rest has its exact beginning and its exact price; the beginning is also
// what a host reports as the time of the burst.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bucket/ticks.h"

namespace dthrottle {

class Waste {
 public:
  Waste() = default;

  // For a bucket that was full before `at`.
  static Waste From(Ticks at) {
    Waste waste;
    waste.since_ = ToSince(at + kSinceUnit - 1);
    return waste;
  }

  // The bucket was full from `full_at` to `at`, and something is charged now. `window` is the longest time that hits
  // wait to be reported.
  void Rested(Ticks full_at, Ticks at, Ticks window) {
    if (at - full_at >= window) {
      *this = From(at);
      return;
    }
    Add(at - full_at, window);
    if (at - Since(at) > 4 * window) since_ = ToSince(at - 2 * window);    // before the counter wraps
  }

  // How much of `price`, charged for something that happened at `when`, wasted refill pays for. It is then spent.
  // `until` is the end of what is known: now, or when the bucket will be full if that is earlier.
  Ticks Pay(Ticks price, Ticks when, Ticks until, Ticks window) {
    const Ticks since = Since(until);
    if (when < since && until - since < 2 * window) {    // it started over at `since`, so it had been full before
      Add(since - when, window);
      since_ = ToSince(when);
    }
    const Ticks paid = std::min({price, until - when, Ticks{amount_} * kAmountUnit});
    if (paid <= 0) return 0;
    amount_ -= static_cast<std::uint32_t>((paid + kAmountUnit - 1) / kAmountUnit);
    return paid;
  }

  // When it starts. Near enough to `reference` (a day) to be told without the upper bits.
  Ticks Since(Ticks reference) const {
    const Ticks now = reference / kSinceUnit;
    const auto ago = static_cast<std::int32_t>(static_cast<std::uint32_t>(now) - since_);
    return std::min((now - ago) * kSinceUnit, reference);
  }

 private:
  static constexpr Ticks kSinceUnit = 1 << 20;     // 65 us; wraps after 78 hours
  static constexpr Ticks kAmountUnit = 1 << 12;    // 256 ns; at most 18 minutes
  static constexpr Ticks kAmountMax = std::numeric_limits<std::uint32_t>::max();

  static std::uint32_t ToSince(Ticks t) { return static_cast<std::uint32_t>(t / kSinceUnit); }

  void Add(Ticks rested, Ticks window) {
    const Ticks sum = amount_ + (rested + kAmountUnit / 2) / kAmountUnit;
    amount_ = static_cast<std::uint32_t>(std::min({sum, 2 * window / kAmountUnit, kAmountMax}));
  }

  std::uint32_t since_ = 0;
  std::uint32_t amount_ = 0;
};

static_assert(sizeof(Waste) == 8);

}    // namespace dthrottle
