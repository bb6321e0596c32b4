#include "share/quota/quota_sharing.h"

#include <utility>

#include "share/ways.h"

namespace dthrottle {

void QuotaSharing::KeepQuotas(std::unique_ptr<Quotas>&& quotas) {
  core_.table->Exclusively([&] {
    quotas_ = std::move(quotas);
    Adopted();
  });
}

void QuotaSharing::FollowCalendar() {
  if (quotas_ == nullptr || !quotas_->calendars().Differs()) return;
  core_.table->Exclusively([&] { quotas_->calendars().Adopt(core_.rules->calendars()); });
}

void QuotaSharing::WatchTags(std::size_t, const std::function<void()>& wake) {
  wake_ = wake;
  core_.table->Exclusively([&] { Adopted(); });
}

void QuotaSharing::Adopted() {
  if (quotas_ == nullptr) return;
  quotas_->calendars().Adopt(core_.rules->calendars());
  quotas_->SetWake(wake_);
  quotas_->SetHosts(core_.peers + 1);
}

Instant QuotaSharing::urgent_at() const {
  const bool any = quotas_ != nullptr && (quotas_->any_untold() || quotas_->walking());
  return any ? tell_at_ : Instant::max();
}

bool QuotaSharing::ReportUrgent(Instant, Instant now, Draft& out) {
  if (quotas_ == nullptr || now < tell_at_) return false;
  const bool more = quotas_->TellSome(
      core_.ShardLock(), now, [&](const Tag& tag, const QuotaWord& word, Table::Shard& shard) {
        return ways_.Get<Debits>().beside().Add(tag, {.quota = word}, shard, now, out);
      });
  if (!more) tell_at_ = now + kTellEvery;
  return more;
}

void QuotaSharing::PeriodEnds(Instant now) {
  if (quotas_ == nullptr) return;
  quotas_->SetHosts(core_.peers + 1);
  quotas_->TellChanged();
  if (now < tell_all_at_) return;
  tell_all_at_ = now + kTellAllEvery;
  quotas_->TellAll();
}

void QuotaSharing::Joined() {
  if (quotas_ != nullptr) quotas_->TellAll();
}

}    // namespace dthrottle
