// Looks once a second whether limits that tags name themselves have little room left (rule/own_limits.h), and frees what no
// bucket needs any more. Says in the log, once a minute at most, when one found no room.
#pragma once

#include <uv.h>

#include <cstdint>

#include "daemon/reloading.h"
#include "io/log.h"
#include "io/part.h"
#include "io/timer.h"
#include "limiter/limiter.h"

namespace dthrottle {

class OwnLimitsWatch final : public Part {
 public:
  // All must outlive it.
  OwnLimitsWatch(uv_loop_t* loop, Limiter& limiter, Reloading& reloading, Log& log);

  void Close() override { timer_.Close(); }

 private:
  void OnTimer(Instant now);

  Limiter& limiter_;
  Reloading& reloading_;
  Log& log_;
  Timer timer_;
  Instant renewed_at_{};
  bool renewing_ = false;
  Instant not_before_{};    // the next renewal
  Instant quiet_until_{};    // after a warning
  std::uint64_t crowded_ = 0;    // as of the last look
};

}    // namespace dthrottle
