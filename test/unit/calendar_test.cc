// When the periods of quotas begin (config/calendar.h).
#include "config/calendar.h"

#include <absl/time/time.h>
#include <catch2/catch.hpp>

#include <string>

#include "base/prng.h"

namespace dthrottle {
namespace {

// Seconds since 1970 of a local time, of which there is one.
std::int64_t At(const char* zone, const char* text) {
  absl::TimeZone found;
  REQUIRE(absl::LoadTimeZone(zone, &found));
  absl::Time time;
  std::string error;
  REQUIRE(absl::ParseTime("%Y-%m-%d %H:%M:%S", text, found, &time, &error));
  return absl::ToUnixSeconds(time);
}

std::uint64_t Length(const QuotaPeriods& p) {
  return p.next - p.begin;
}

TEST_CASE("calendar: hours, days, weeks and months begin where people say that they do") {
  const std::int64_t at = At("Europe/Paris", "2026-11-25 15:04:05");    // a Wednesday
  const auto begin = [&](Per per) { return static_cast<std::int64_t>(PeriodsAt({per, "Europe/Paris"}, at).begin); };
  CHECK(begin(Per::kHour) == At("Europe/Paris", "2026-11-25 15:00:00"));
  CHECK(begin(Per::kDay) == At("Europe/Paris", "2026-11-25 00:00:00"));
  CHECK(begin(Per::kWeek) == At("Europe/Paris", "2026-11-23 00:00:00"));
  CHECK(begin(Per::kMonth) == At("Europe/Paris", "2026-11-01 00:00:00"));
  const std::int64_t monday = At("UTC", "2026-11-23 00:00:00");
  CHECK(static_cast<std::int64_t>(PeriodsAt({Per::kWeek, "UTC"}, monday).begin) == monday);
  CHECK(Length(PeriodsAt({Per::kMonth, "UTC"}, At("UTC", "2028-02-29 12:00:00"))) == 29 * 86400);
}

TEST_CASE("calendar: a day on which clocks change has 23 or 25 hours, and the hour that they repeat is two") {
  const auto day = [](const char* text) { return Length(PeriodsAt({Per::kDay, "Europe/Paris"}, At("Europe/Paris", text))); };
  CHECK(day("2026-03-28 12:00:00") == 24 * 3600);
  CHECK(day("2026-03-29 12:00:00") == 23 * 3600);
  CHECK(day("2026-10-25 12:00:00") == 25 * 3600);
  const std::int64_t twice = At("Europe/Paris", "2026-10-25 01:30:00");
  for (int hour = 0; hour < 4; ++hour) {
    CHECK(Length(PeriodsAt({Per::kHour, "Europe/Paris"}, twice + hour * 3600)) == 3600);
  }
}

TEST_CASE("calendar: a day whose midnight is skipped begins when its clocks do, and half hours are periods too") {
  const std::int64_t noon = At("America/Sao_Paulo", "2018-11-04 12:00:00");    // 00:00 was 01:00
  CHECK(Length(PeriodsAt({Per::kDay, "America/Sao_Paulo"}, noon)) == 23 * 3600);
  CHECK(static_cast<std::int64_t>(PeriodsAt({Per::kDay, "America/Sao_Paulo"}, noon).begin) ==
        At("America/Sao_Paulo", "2018-11-04 01:00:00"));
  // 02:00 was 01:30: the hour that began at 01:00 ends, and half an hour follows it.
  const std::int64_t after = At("Australia/Lord_Howe", "2026-04-05 02:10:00");
  const QuotaPeriods hour = PeriodsAt({Per::kHour, "Australia/Lord_Howe"}, after - 1200);
  CHECK(Length(hour) == 1800);
  CHECK(static_cast<std::int64_t>(hour.next) == At("Australia/Lord_Howe", "2026-04-05 02:00:00"));
}

TEST_CASE("calendar: periods follow each other without a gap, in any zone and at any time") {
  Prng prng(11);
  const char* const zones[] = {"UTC", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata",
                               "Australia/Lord_Howe", "Pacific/Apia", "America/Havana", "Africa/Casablanca"};
  for (int i = 0; i < 20'000; ++i) {
    const QuotaCalendar calendar{static_cast<Per>(prng.Below(4)), zones[prng.Below(std::size(zones))]};
    const auto at = static_cast<std::int64_t>(prng.Below(std::uint64_t{2} << 30));
    const QuotaPeriods its = PeriodsAt(calendar, at);
    CAPTURE(calendar.time_zone, static_cast<int>(calendar.per), at, its.begin, its.next, its.after);
    CHECK((static_cast<std::int64_t>(its.begin) <= at && at < static_cast<std::int64_t>(its.next)));
    const QuotaPeriods next = PeriodsAt(calendar, static_cast<std::int64_t>(its.next));
    CHECK((next.begin == its.next && next.next == its.after));
  }
}

TEST_CASE("calendar: a name that is no time zone is none, and reads no file elsewhere") {
  CHECK(IsTimeZone("Europe/Paris"));
  CHECK(IsTimeZone("UTC"));
  for (const char* name : {"", "Mars/Olympus", "/etc/passwd", "../../etc/passwd", "Europe"}) CHECK_FALSE(IsTimeZone(name));
}

}    // namespace
}    // namespace dthrottle
