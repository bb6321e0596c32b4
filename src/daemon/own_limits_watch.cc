#include "daemon/own_limits_watch.h"

#include <algorithm>
#include <utility>

#include "io/clock.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr Duration kRenewRest = std::chrono::seconds(10);
constexpr int kRenewRestTimes = 9;    // as long as the table was gone through: it takes a tenth of the time at most
constexpr Duration kSayEvery = std::chrono::minutes(1);

}    // namespace

OwnLimitsWatch::OwnLimitsWatch(uv_loop_t* loop, Limiter& limiter, Reloading& reloading, Log& log)
    : limiter_(limiter), reloading_(reloading), log_(log), timer_(loop, [this] { OnTimer(Now()); }) {
  timer_.StartEvery(kLookEvery);
}

void OwnLimitsWatch::OnTimer(Instant now) {
  if (limiter_.reshaping()) return;
  if (std::exchange(renewing_, false)) not_before_ = now + std::max(kRenewRest, kRenewRestTimes * (now - renewed_at_));
  const OwnLimits* const own = limiter_.rules().own();
  if (own == nullptr) return;
  const std::uint64_t crowded = own->crowded();
  if (std::exchange(crowded_, crowded) < crowded && now >= quiet_until_) {
    quiet_until_ = now + kSayEvery;
    log_.Warning("max_own_limit: {} limits that differ are in use, and their rules decided where there was no room for one",
                 own->used());
  }
  if (reloading_.busy() || now < not_before_ || !own->wants_room()) return;
  limiter_.RenewOwnLimits();
  renewing_ = true;
  renewed_at_ = now;
  reloading_.Work();
}

}    // namespace dthrottle
