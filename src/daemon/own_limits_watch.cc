#include "daemon/own_limits_watch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/clock.h"
#include "rule/rulebook.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kLookEveryMs = 1000;
constexpr Duration kRenewRest = std::chrono::seconds(10);
constexpr int kRenewRestTimes = 9;    // as long as the table was gone through: it takes a tenth of the time at most
constexpr Duration kSayEvery = std::chrono::minutes(1);

}    // namespace

OwnLimitsWatch::OwnLimitsWatch(uv_loop_t* loop, Limiter& limiter, Reloading& reloading, Log& log)
    : limiter_(limiter), reloading_(reloading), log_(log) {
  DT_CHECK(uv_timer_init(loop, &timer_) == 0);
  timer_.data = this;
  const auto on_timer = [](uv_timer_t* timer) { static_cast<OwnLimitsWatch*>(timer->data)->OnTimer(Now()); };
  DT_CHECK(uv_timer_start(&timer_, on_timer, kLookEveryMs, kLookEveryMs) == 0);
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

void OwnLimitsWatch::Close() {
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), nullptr);
}

}    // namespace dthrottle
