// The one place where the program asks what time it is.
#pragma once

#include "base/time.h"

namespace dthrottle {

// CLOCK_MONOTONIC: the same for every process since boot, so that a table outlives the process that wrote it.
Instant Now();

// CLOCK_BOOTTIME: it goes on while the machine sleeps. Leases and mastership are measured by it, since for the other
// side of them time goes on too.
BootInstant BootNow();

// Since 1970, by a clock that may be set. Only for numbers that should grow from one start to the next.
Duration WallClock();

}    // namespace dthrottle
