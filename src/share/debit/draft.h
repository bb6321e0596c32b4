// Hits on their way into one frame, with the instant at which those of each entry began. A frame states its interval
// and every beginning as a phase within it, so phases are known when the frame is complete.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/time.h"
#include "bucket/ticks.h"
#include "bus/entries.h"

namespace dthrottle {

struct Draft {
  Entries entries;
  std::vector<Ticks> began;    // for each entry

  // Sets the phases within the interval that ends at `to`, and returns its beginning: `from`, or the earliest beginning
  // of an entry if that is before, but not more than `reach` before.
  Instant Stamp(Instant from, Instant to, Duration reach) {
    Ticks first = ToTicks(from);
    for (const Ticks began_at : began) first = std::min(first, began_at);
    first = std::max(first, ToTicks(from - reach));
    const Ticks length = ToTicks(to) - first;
    for (std::size_t i = 0; i < began.size(); ++i) {
      const Ticks since = began[i] - first;
      const bool within = since > 0 && length > 0;
      entries.SetPhase(i, within ? std::min<Ticks>((since * kPhases + length - 1) / length, kPhases - 1) : 0);
    }
    return Instant(ToDuration(first));
  }

  void Clear() {
    entries.Clear();
    began.clear();
  }
};

}    // namespace dthrottle
