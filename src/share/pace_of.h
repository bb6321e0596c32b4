// The pace of a limit in the fleet that a limiter knows.
#pragma once

#include "rule/rulebook.h"
#include "share/pace.h"
#include "share/share.h"

namespace dthrottle {

inline Tokens UnheardMaxOf(const LimiterCore& core, const Limit& limit) {
  return limit.max_unheard > 0 ? limit.max_unheard : UnheardMaxOf(limit.shape.burst(), core.root_hosts);
}

inline Pace PaceOf(const LimiterCore& core, const Limit& limit) {
  return {limit.shape.rate(), limit.shape.burst(), UnheardMaxOf(core, limit), core.root_hosts,
          Seconds(ToDuration(core.window))};
}

}    // namespace dthrottle
