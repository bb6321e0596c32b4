// When the periods of quotas begin, by a wall clock in a time zone. A day is what people there call a day: 23 or 25 hours
// long where the clocks change. Hours are never longer than an hour: the one that clocks repeat is two periods. A week
// begins on Monday.
#pragma once

#include <string>

#include "quota/quotas.h"
#include "rule/rule.h"

namespace dthrottle {

// Whether the system's database of time zones has the name. Reads files.
bool IsTimeZone(const std::string& name);

// The period of the calendar that `seconds` since 1970 are in, and the two behind it, without when it ends by the core's
// clock. REQUIRES: IsTimeZone(calendar.time_zone), which it reads only once.
QuotaPeriods PeriodsAt(const QuotaCalendar& calendar, std::int64_t seconds);

}    // namespace dthrottle
