// Which quota period of a tag is the latest that its counts have been in, where the wall clock was set back from it
// (quotas.h). Until a period has gone by, only one that is later than all before may begin. A slot says what is known of
// that, so it outlives the process. Calls are for one tag, whose shard is locked.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "quota/quota_file.h"
#include "quota/quota_periods.h"

namespace dthrottle {

class LatestPeriods {
 public:
  // `counter` is the host's number in this boot, `now` when the process begins. The calendars must outlive it.
  LatestPeriods(std::uint64_t counter, const QuotaCalendars& calendars, Instant now)
      : counter_(counter), calendars_(calendars), since_(now) {}

  // Whether the period is later than all that the counts have been in, or that of the counts has ended. Where the latest
  // of all is doubted, one before it may begin too.
  bool MayBegin(const QuotaSlot& slot, const QuotaSpan& span, Instant now) const;

  // Whether the period of the counts is past. While that may be only because the clock was set back, so must be the
  // latest one.
  bool IsOver(const QuotaSlot& slot, Instant now) const;

  // The period of the counts ends then.
  void SetEnd(QuotaSlot& slot, Instant ends) const;

  // Both before the slot is of that period: the counts move to it, earlier or later; or it begins.
  void Move(QuotaSlot& slot, const QuotaSpan& span) const;
  void Begin(QuotaSlot& slot, const QuotaSpan& span, Instant now) const;

 private:
  bool KnowsEnd(const QuotaSlot& slot) const { return slot.own.ends_counter == counter_; }
  bool IsDoubted(const QuotaSlot& slot) const;
  bool HasEnded(const QuotaSlot& slot, Instant now) const;

  const std::uint64_t counter_;
  const QuotaCalendars& calendars_;
  const Instant since_;
};

}    // namespace dthrottle
