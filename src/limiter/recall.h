// What loans of a tag mean for its bucket (share/loans.h). For the files of the limiter.
#pragma once

#include "limiter/limiter.h"
#include "share/ways.h"
#include "tally/lane.h"

namespace dthrottle {

// Counts what workers have spent of the tag since the last time. Returns what they have not. Where some have tokens,
// the shape of `asked` is then that of the bucket on this host. With the tag's shard locked.
Cost SettleLoans(Ways& ways, Asked& asked, Lane& lane);

// The same before the bucket is asked. If it has less than the cost, tokens that lie unused with a worker come back; those
// of a contended tag that a worker uses only if `all`, or the cost is above 1, and they make up for what is missing.
void CollectLoans(Ways& ways, Asked& asked, Lane& lane, bool all = false);
inline void BeforeAsking(Ways& ways, Asked& asked, Lane& lane) {
  if (ways.core().loans.any()) [[unlikely]] CollectLoans(ways, asked, lane);
}

// Takes back all that is lent of a tag.
void RecallLoans(Ways& ways, Asked& asked, Lane& lane);

// Until when the tag is refused, as Lending::RefusedUntil.
Instant RefusedUntil(Ways& ways, const Query& query, std::uint64_t hash, const Limit& limit, const Slot* slot,
                     Instant now);

}    // namespace dthrottle
