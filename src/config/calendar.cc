#include "config/calendar.h"

#include <absl/time/time.h>

#include <algorithm>

#include "base/check.h"

namespace dthrottle {

namespace {

std::uint64_t Since1970(absl::Time time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(absl::ToUnixSeconds(time), 0));
}

// The first instant of a day or month. Where clocks skip midnight, it begins when they do.
absl::Time First(const absl::TimeZone& zone, absl::CivilSecond midnight) {
  const auto found = zone.At(midnight);
  return found.kind == absl::TimeZone::TimeInfo::SKIPPED ? found.trans : found.pre;
}

template <class Unit>
QuotaPeriods Periods(const absl::TimeZone& zone, Unit unit, int length = 1) {
  const auto first = [&](int periods) { return Since1970(First(zone, absl::CivilSecond(unit + periods * length))); };
  return {first(0), first(1), first(2), {}};
}

// The full hour of the zone before that instant, and the next one after. A change of its clocks begins an hour too.
absl::Time HourBegins(const absl::TimeZone& zone, absl::Time at) {
  const absl::CivilSecond civil = absl::ToCivilSecond(at, zone);
  const absl::Time full = absl::FromUnixSeconds(absl::ToUnixSeconds(at)) -
                          absl::Seconds(civil - absl::CivilSecond(absl::CivilHour(civil)));
  absl::TimeZone::CivilTransition change;
  if (!zone.PrevTransition(at + absl::Seconds(1), &change)) return full;
  return std::max(full, zone.At(change.to).trans);
}
absl::Time HourEnds(const absl::TimeZone& zone, absl::Time begin) {
  const absl::CivilSecond civil = absl::ToCivilSecond(begin, zone);
  const absl::Time full = begin + absl::Seconds(absl::CivilSecond(absl::CivilHour(civil) + 1) - civil);
  absl::TimeZone::CivilTransition change;
  if (!zone.NextTransition(begin, &change)) return full;
  return std::min(full, zone.At(change.to).trans);
}

QuotaPeriods Hours(const absl::TimeZone& zone, absl::Time at) {
  const absl::Time begin = HourBegins(zone, at), next = HourEnds(zone, begin);
  return {Since1970(begin), Since1970(next), Since1970(HourEnds(zone, next)), {}};
}

}    // namespace

bool IsTimeZone(const std::string& name) {
  absl::TimeZone zone;
  return !name.empty() && name.front() != '/' && name.find("..") == std::string::npos &&
         absl::LoadTimeZone(name, &zone);
}

QuotaPeriods PeriodsAt(const QuotaCalendar& calendar, std::int64_t seconds) {
  absl::TimeZone zone;
  DT_CHECK(absl::LoadTimeZone(calendar.time_zone, &zone));
  const absl::Time at = absl::FromUnixSeconds(seconds);
  const absl::CivilSecond civil = absl::ToCivilSecond(at, zone);
  switch (calendar.per) {
    case Per::kHour:
      return Hours(zone, at);
    case Per::kDay:
      return Periods(zone, absl::CivilDay(civil));
    case Per::kWeek:
      return Periods(zone, absl::PrevWeekday(absl::CivilDay(civil) + 1, absl::Weekday::monday), 7);
    case Per::kMonth:
      return Periods(zone, absl::CivilMonth(civil));
  }
  return {};
}

}    // namespace dthrottle
