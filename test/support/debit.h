// A late debit by the bare event-time rule: no refill is known to have been wasted since.
#pragma once

#include "bucket/bucket.h"

namespace dthrottle::testing {

inline void Debit(Bucket& bucket, const Shape& shape, std::uint64_t hits, Instant when, Tokens debt_max, Instant now) {
  Waste none;
  bucket.Debit(shape, hits, when, TicksOf(debt_max, shape), now, none, 0);
}

}    // namespace dthrottle::testing
