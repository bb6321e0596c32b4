// The section [hold] of the settings.
#include "config/kinds.h"
#include "config/sections.h"
#include "hold/hold_table.h"

namespace dthrottle {

Section HoldSection() {
  using S = Settings;
  using namespace std::chrono_literals;
  return {
      "hold",
      "Tokens that are taken now and settled when it is known what they were needed for, by questions of [ask]. Holds "
      "are kept beside the table, in a file of its name and \".holds\", and outlive a kill of the daemon as it does.",
      {
          Integer<S>("max_holds", "4096", 0, HoldTable::kHoldsMax, MEMBER(S, hold.max_holds),
                     "The most holds that are open at once. One more is answered with an error, and counted. What "
                     "became of as many that have ended is remembered. Each takes 1 KiB, and one of long tags up to "
                     "10 KiB more while it is open. 0: nothing can be held, and what connections hold ends. Another "
                     "number ends no hold."),
          Reloads(DurationKey<S>("max_ttl", "\"10m\"", 1ms, 24h, MEMBER(S, hold.max_ttl),
                                 "The longest time that a hold may be taken for. A hold that nobody has settled by "
                                 "then gives its tokens back.")),
      }};
}

}    // namespace dthrottle
