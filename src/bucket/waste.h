// How much refill a bucket has thrown away lately because it was full.
//
// A report says what a peer served up to a period ago. Had those hits been charged when they happened, refill that was
// thrown away since would have paid for them; so a late debit is paid out of that refill first, and only the rest comes
// off the level (DESIGN section 7; level -= max(0, hits - refill wasted since then)). Without this a client that stays
// within its rate would be refused whenever burst < rate x period: its bucket is full most of the time, and then a
// period's worth of hits arrives at once.
//
// Kept in eight bytes: since when, and how much. Where within that time the waste lay is not kept; it is taken to be
// spread evenly, except that a bucket which has rested for a whole window starts over, so that a burst after a rest has
// its exact beginning. The beginning is also what a host reports as the time of the burst.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bucket/ticks.h"

namespace dthrottle {

class Waste {
 public:
  Waste() = default;

  // Of a bucket that was full before `at`.
  static Waste From(Ticks at) {
    Waste waste;
    waste.since_ = static_cast<std::uint32_t>((at + kSinceUnit - 1) / kSinceUnit);
    return waste;
  }

  // The bucket was full from `full_at` to `at`, and something is charged now. `window` is the longest time that hits
  // wait to be reported.
  void Rested(Ticks full_at, Ticks at, Ticks window) {
    if (at - full_at >= window) {
      *this = From(at);
      return;
    }
    Add(at - full_at);
    const Ticks span = at - Since(at);
    if (span > 4 * window) {    // forget the older half, and as much of the waste
      amount_ = Scaled(2 * window, span);
      since_ = static_cast<std::uint32_t>((at - 2 * window) / kSinceUnit);
    }
  }

  // How much of `price`, charged for something that happened at `when`, wasted refill pays for. It is then spent.
  // `until` is the end of what is known: now, or when the bucket will be full if that is earlier.
  Ticks Pay(Ticks price, Ticks when, Ticks until, Ticks window) {
    Ticks since = Since(until);
    if (when < since && until - since < 2 * window) {    // it started over at `since`, so it had been full before
      Add(since - when);
      since_ = static_cast<std::uint32_t>(when / kSinceUnit);
      since = Since(until);
    }
    const std::uint32_t available = when > since ? Scaled(until - when, until - since) : amount_;
    const Ticks paid = std::min(price, Ticks{available} * kAmountUnit);
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

  void Add(Ticks rested) {
    const Ticks sum = amount_ + (rested + kAmountUnit / 2) / kAmountUnit;
    amount_ = static_cast<std::uint32_t>(std::min<Ticks>(sum, std::numeric_limits<std::uint32_t>::max()));
  }

  // The part of the amount that falls on `part` of `whole`, both from the same end.
  std::uint32_t Scaled(Ticks part, Ticks whole) const {
    if (part <= 0) return 0;
    if (part >= whole) return amount_;
    return static_cast<std::uint32_t>(static_cast<double>(amount_) * static_cast<double>(part) /
                                      static_cast<double>(whole));
  }

  std::uint32_t since_ = 0;
  std::uint32_t amount_ = 0;
};

static_assert(sizeof(Waste) == 8);

}    // namespace dthrottle
