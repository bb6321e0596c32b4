// Spaces early reports. Each tag sends about one a period, so the reports of a few tags leave at once and those of many
// gather. A host hears no more than kHeard a second of all others, which is some 5 % of a core, unless there are so many
// hosts that each has fewer than kOfHost.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace dthrottle {

class EarlySpacing {
 public:
  // The next report may leave from then on.
  Instant from() const { return from_; }

  // A report has left for so many hosts, this one included.
  void Left(double hosts, Instant now) {
    const double every = 1 / std::max(kHeard / hosts, kOfHost);    // s
    until_ = std::max(until_, now) + DurationOf(every);
    from_ = until_ - DurationOf(kAtOnce * every);
  }

 private:
  static constexpr double kHeard = 1500, kOfHost = 4;    // reports a second, in the long run
  static constexpr double kAtOnce = 20;

  Instant until_{};    // each report that has left takes its part of the time before
  Instant from_ = Instant::min();
};

}    // namespace dthrottle
