#include "quota/quota_periods.h"

#include <algorithm>

namespace dthrottle {

void QuotaCalendars::Adopt(const std::vector<QuotaCalendar>& calendars) {
  calendars_ = calendars;
  periods_.clear();
  for (const QuotaCalendar& calendar : calendars_) periods_.push_back(calendar_(calendar));
}

// The clock is steered a little all the time: that the same period ends some milliseconds sooner is no news.
bool QuotaCalendars::Differs() const {
  constexpr Duration kSteered = std::chrono::milliseconds(10);
  for (std::size_t i = 0; i < calendars_.size(); ++i) {
    const QuotaPeriods& ours = periods_[i];
    const QuotaPeriods is = calendar_(calendars_[i]);
    if (is.begin != ours.begin || is.next != ours.next || is.after != ours.after) return true;
    if (std::chrono::abs(is.ends - ours.ends) > kSteered) return true;
  }
  return false;
}

QuotaSpan QuotaCalendars::Now(std::size_t calendar, Instant now) const {
  const QuotaPeriods& its = periods_[calendar];
  if (now >= its.ends) return Next(calendar);
  return {its.begin, its.next, its.ends};
}

QuotaSpan QuotaCalendars::Next(std::size_t calendar) const {
  const QuotaPeriods& its = periods_[calendar];
  QuotaSpan span{its.next, its.after, its.ends};
  span.ends += span.length();
  return span;
}

bool QuotaCalendars::IsPast(std::uint64_t second, Instant now) const {
  if (periods_.empty()) return false;
  constexpr std::int64_t kFar = 1'000'000'000;    // somebody may say anything
  const auto after_next = static_cast<std::int64_t>(second - periods_.front().next);
  return now >= periods_.front().ends + std::chrono::seconds(std::clamp(after_next, -kFar, kFar));
}

}    // namespace dthrottle
