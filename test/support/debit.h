// A late debit by the bare event-time rule: no refill is known to have been wasted since.
#pragma once

#include "bucket/bucket.h"

namespace dthrottle::testing {

inline void Debit(Bucket& bucket, const Shape& shape, std::uint64_t hits, Instant when, Tokens debt_max, Instant now) {
  Waste none;
  const auto floor = static_cast<Ticks>(std::min(debt_max * static_cast<double>(shape.interval), 1e18));
  bucket.Debit(shape, hits, when, floor, now, none, 0);
}

}    // namespace dthrottle::testing
