// Looks once a second how long the table remembers the buckets of each rule, and says in the log, once a minute at
// most, when that is less than they need to fill.
#pragma once

#include <uv.h>

#include "io/log.h"
#include "io/part.h"
#include "io/timer.h"
#include "limiter/limiter.h"

namespace dthrottle {

class RetentionWatch final : public Part {
 public:
  // All must outlive it.
  RetentionWatch(uv_loop_t* loop, Limiter& limiter, Log& log);

  void Close() override { timer_.Close(); }

 private:
  void OnTimer(Instant now);

  Limiter& limiter_;
  Log& log_;
  Timer timer_;
  Instant quiet_until_{};    // after a warning
};

}    // namespace dthrottle
