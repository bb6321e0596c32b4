#include "share/quota/quota_sharing.h"

#include <memory>
#include <utility>

#include "share/ways.h"

namespace dthrottle {

void QuotaSharing::Keep(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh,
                        Quotas::Calendar calendar) {
  const auto hash = [this](const Tag& tag) { return core_.table->Hash(tag); };
  auto quotas = std::make_unique<Quotas>(region, boot_id, fresh, hash, std::move(calendar));
  core_.table->Exclusively([&] {
    quotas->Adopt(core_.rules->calendars());
    core_.quotas = std::move(quotas);
    Adopted();
  });
}

void QuotaSharing::FollowCalendar() {
  if (core_.quotas == nullptr || !core_.quotas->Differs()) return;
  core_.table->Exclusively([&] { core_.quotas->Adopt(core_.rules->calendars()); });
}

void QuotaSharing::WatchTags(std::size_t, const std::function<void()>& wake) {
  wake_ = wake;
  core_.table->Exclusively([&] { Adopted(); });
}

void QuotaSharing::Adopted() {
  if (core_.quotas == nullptr) return;
  core_.quotas->SetWake(wake_);
  core_.quotas->SetHosts(core_.peers + 1);
}

void QuotaSharing::HearQuota(const QuotaWord& word, const TagAt& at, std::uint32_t peer, Instant now) {
  if (core_.HasQuota(at.limit)) core_.quotas->Hear(at.tag, at.hash, at.limit, word, peer, now);
}

Instant QuotaSharing::urgent_at() const {
  const bool any = core_.quotas != nullptr && (core_.quotas->any_untold() || core_.quotas->walking());
  return any ? tell_at_ : Instant::max();
}

bool QuotaSharing::ReportUrgent(Instant, Instant now, Draft& out) {
  if (core_.quotas == nullptr || now < tell_at_) return false;
  const bool more = core_.quotas->TellSome(
      core_.ShardLock(), now, [&](const Tag& tag, const QuotaWord& word, Table::Shard& shard) {
        return ways_.Get<Debits>().AddBeside(tag, {.quota = word}, shard, now, out);
      });
  if (!more) tell_at_ = now + kTellEvery;
  return more;
}

void QuotaSharing::PeriodEnds(Instant now) {
  if (core_.quotas == nullptr) return;
  core_.quotas->SetHosts(core_.peers + 1);
  core_.quotas->TellChanged();
  if (now < tell_all_at_) return;
  tell_all_at_ = now + kTellAllEvery;
  core_.quotas->TellAll();
}

void QuotaSharing::Joined() {
  if (core_.quotas != nullptr) core_.quotas->TellAll();
}

}    // namespace dthrottle
