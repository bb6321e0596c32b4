// The periods that quotas are counted in. When they begin is the calendar's to say, for which somebody else looks at the
// clock and a time zone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/time.h"
#include "rule/rule.h"

namespace dthrottle {

// The period that a calendar is in, and the two that follow, by when they begin: seconds since 1970.
struct QuotaPeriods {
  std::uint64_t begin = 0, next = 0, after = 0;
  Instant ends{};    // when the next begins, by the clock of the core

  friend bool operator==(const QuotaPeriods&, const QuotaPeriods&) = default;
};

// A period.
struct QuotaSpan {
  std::uint64_t begin, next;    // of this one and the next, seconds since 1970
  Instant ends;

  Duration length() const { return std::chrono::seconds(static_cast<std::int64_t>(next - begin)); }
};

// The calendars of the rules in force, by their numbers (Limit::calendar).
class QuotaCalendars {
 public:
  using Calendar = std::function<QuotaPeriods(const QuotaCalendar&)>;

  explicit QuotaCalendars(Calendar calendar) : calendar_(std::move(calendar)) {}

  // With the table locked: other rules are in force, or the calendar says something else. Differs() tells whether it
  // does.
  void Adopt(const std::vector<QuotaCalendar>& calendars);
  bool Differs() const;

  QuotaSpan Now(std::size_t calendar, Instant now) const;
  QuotaSpan Next(std::size_t calendar) const;

  // Whether that second since 1970 is past, by any of the calendars: all know which second it is.
  bool IsPast(std::uint64_t second, Instant now) const;

 private:
  const Calendar calendar_;
  std::vector<QuotaCalendar> calendars_;
  std::vector<QuotaPeriods> periods_;    // by calendar
};

}    // namespace dthrottle
