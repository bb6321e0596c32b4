// Quotas of rules: where they are counted, and over all hosts, for what each host has counted of a tag goes out beside
// hits, with reports (quota/quotas.h). It is no way of deciding, and has no limits; it stands in the list of ways for what
// peers say and are told.
#pragma once

#include <functional>
#include <memory>

#include "quota/quotas.h"
#include "share/share.h"

namespace dthrottle {

class QuotaSharing final : public Way {
 public:
  static constexpr Share kShare = static_cast<Share>(-1);    // of no rule

  // What one host says at once is gathered for so long.
  static constexpr Duration kTellEvery = std::chrono::milliseconds(50);
  // All is told again so often, in case all reports about a tag were lost for good.
  static constexpr Duration kTellAllEvery = std::chrono::minutes(1);

  QuotaSharing(LimiterCore& core, Ways& ways) : core_(core), ways_(ways) {}

  static constexpr bool kCountsQuotas = true;
  Quotas* quotas() const { return quotas_.get(); }
  void KeepQuotas(std::unique_ptr<Quotas>&& quotas);
  void FollowCalendar();

  bool Has(const Limit&) const { return false; }
  bool Decide(Asked& asked) { return DecideAlone(asked); }

  void Adopted();
  void WatchTags(std::size_t tags, const std::function<void()>& wake);
  Instant urgent_at() const;
  bool ReportUrgent(Instant from, Instant now, Draft& out);
  void PeriodEnds(Instant now);
  void Joined();

 private:
  LimiterCore& core_;
  Ways& ways_;
  std::unique_ptr<Quotas> quotas_;    // set while every shard of the table is locked, read while one is
  std::function<void()> wake_;
  Instant tell_at_{};        // not before
  Instant tell_all_at_{};    // with the end of a period after that
};

}    // namespace dthrottle
