// Quotas of rules: where they are counted, and over all hosts, for what each host has counted of a tag goes out beside
// hits, with reports (quota/quotas.h). It is no way of deciding, and has no limits; it stands in the list of ways for what
// peers say and are told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

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

  // Counts the quotas of rules from now on, in `region`, as Quotas. Once, by the owner.
  void Keep(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh,
            Quotas::Calendar calendar);
  // Follows the clock: to be called once a second, by the owner.
  void FollowCalendar();
  QuotaCounts counts() const { return core_.quotas != nullptr ? core_.quotas->counts() : QuotaCounts(); }

  bool Has(const Limit&) const { return false; }
  bool Decide(Asked& asked) { return DecideAlone(asked); }

  void Adopted();
  void WatchTags(std::size_t tags, const std::function<void()>& wake);
  // A peer, by number, says so of a tag. With its shard locked.
  bool Knows(const TagAt& at) const { return core_.HasQuota(at.limit) && core_.quotas->Knows(at.hash); }
  void HearQuota(const QuotaWord& word, const TagAt& at, std::uint32_t peer, Instant now);
  Instant urgent_at() const;
  bool ReportUrgent(Instant from, Instant now, Draft& out);
  void PeriodEnds(Instant now);
  void Joined();

 private:
  LimiterCore& core_;
  Ways& ways_;
  std::function<void()> wake_;
  Instant tell_at_{};        // not before
  Instant tell_all_at_{};    // with the end of a period after that
};

}    // namespace dthrottle
