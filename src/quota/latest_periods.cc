#include "quota/latest_periods.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace dthrottle {

bool LatestPeriods::MayBegin(const QuotaSlot& slot, const QuotaSpan& span, Instant now) const {
  if (span.begin / 60 > slot.latest_min || HasEnded(slot, now)) return true;
  return IsDoubted(slot) && span.begin / 60 != slot.latest_min;
}

bool LatestPeriods::IsOver(const QuotaSlot& slot, Instant now) const {
  if (!calendars_.IsPast(slot.until, now)) return false;
  const std::uint64_t latest_until = slot.latest_min * std::uint64_t{60} + (slot.until - slot.period);
  return slot.latest_min == 0 || IsDoubted(slot) || HasEnded(slot, now) || calendars_.IsPast(latest_until, now);
}

// A kill between the two stores leaves an end that nobody believes in.
void LatestPeriods::SetEnd(QuotaSlot& slot, Instant ends) const {
  const auto ends_ns = static_cast<std::uint64_t>(ends.time_since_epoch().count());
  if (slot.latest_min == 0 || (KnowsEnd(slot) && slot.own.ends_ns == ends_ns)) return;
  std::atomic_ref(slot.own.ends_ns).store(ends_ns);
  std::atomic_ref(slot.own.ends_counter).store(counter_);
}

void LatestPeriods::Move(QuotaSlot& slot, const QuotaSpan& span) const {
  const auto from_min = static_cast<std::uint32_t>(std::min<std::uint64_t>(slot.period / 60, UINT32_MAX));
  const bool is_back = slot.period > span.begin, any_doubt = slot.own.was_carried != 0 || slot.own.has_begun != 0;
  if (from_min >= slot.latest_min || (is_back && any_doubt)) {    // what is doubted makes way
    slot.own.was_carried = slot.own.has_begun = 0;
    std::atomic_ref(slot.latest_min).store(from_min);
  } else if (!is_back && !KnowsEnd(slot)) {
    slot.own.was_carried = 1;
  }
}

// The latest period is forgotten when this one is later, or the second that begins in its time: the first may have begun
// a moment after the clock was set.
void LatestPeriods::Begin(QuotaSlot& slot, const QuotaSpan& span, Instant now) const {
  const bool is_second = slot.own.has_begun != 0 && HasEnded(slot, now);
  if (span.begin / 60 > slot.latest_min || is_second) std::atomic_ref(slot.latest_min).store(0);
  slot.own.has_begun = slot.latest_min != 0;
}

// Whether the clock was rather ahead in the latest period than set back from it: since then a period before it has begun
// in its time, or a boot before this one has taken the counts past the beginning of one.
bool LatestPeriods::IsDoubted(const QuotaSlot& slot) const {
  return slot.own.has_begun != 0 || (slot.own.was_carried != 0 && !KnowsEnd(slot));
}

// Whether the period of the counts is over by the clock of the core, which nobody sets. REQUIRES: latest_min is not 0.
bool LatestPeriods::HasEnded(const QuotaSlot& slot, Instant now) const {
  constexpr std::uint64_t kPeriodSecondsMax = 366 * 86400;    // a file may say anything
  if (KnowsEnd(slot)) return now >= FromNanoseconds(static_cast<std::int64_t>(slot.own.ends_ns));
  const std::uint64_t length = std::min(slot.until - slot.period, kPeriodSecondsMax);
  return now >= since_ + std::chrono::seconds(static_cast<std::int64_t>(length));
}

}    // namespace dthrottle
