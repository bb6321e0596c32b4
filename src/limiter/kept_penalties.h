// Penalties over a restart and under other rules: those in force go on, no longer than rules say, and those that ended
// lately make the next one of their tag longer. The thread that owns the limiter calls.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"
#include "limiter/limiter.h"

namespace dthrottle {

// For the process that comes next; empty: there are none.
std::string KeepPenalties(Limiter& limiter, Instant now);

// Goes on with what a process before has left, as far as rules have penalties still, and no longer than they say now.
// What cannot be read is as none.
void RestorePenalties(Limiter& limiter, std::string_view kept, Instant now);

// The limiter has adopted other rules: no penalty lasts longer than they say, and one that they have not is forgotten.
void ShortenPenalties(Limiter& limiter, Instant now);

}    // namespace dthrottle
