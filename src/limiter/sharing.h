// The limiter's half of what hosts tell each other: collects hits that no report has carried, merges what peers
// served, walks the table for a snapshot. All of it in slices of some 50 us, so that no query waits for a report of a
// million tags. The other half, which knows peers and frames, is report/exchange.h.
#pragma once

#include <cstdint>

#include "base/prng.h"
#include "base/time.h"
#include "limiter/limiter.h"
#include "report/exchange.h"

namespace dthrottle {

struct SharingCounts {
  std::uint64_t collected = 0;     // entries handed over for reports
  std::uint64_t merged = 0;        // entries of peers that were debited
  std::uint64_t unmatched = 0;     // entries that no rule of this host shares: other rules, or share = "local"
  std::uint64_t expired = 0;       // hits dropped because they were older than the horizon
  std::uint64_t unrecorded = 0;    // entries without room in the table
};

class Sharing {
 public:
  // All must outlive it. Reports go out every `period`, the first after a random part of one.
  Sharing(Limiter& limiter, ToPeersRing& to_peers, FromPeersRing& from_peers, Duration period, Prng& prng, Instant now);

  // Does one slice of whatever is due; returns whether there is more to do at once. Call it when a peer's data has
  // arrived and at next(). The limiter's owner thread.
  bool Work(Instant now);

  // When the next report is due.
  Instant next() const { return next_; }

  void SetPeriod(Duration period, Instant now);

  const SharingCounts& counts() const { return counts_; }

 private:
  enum class Walk { kNone, kFlush, kTable, kEnd };

  bool Collect(Instant now);
  bool MergeSome(Instant now);
  bool WalkSome(Instant now);

  Limiter& limiter_;
  ToPeersRing& to_peers_;
  FromPeersRing& from_peers_;
  Duration period_;
  Instant next_;
  SharingCounts counts_;
};

}    // namespace dthrottle
