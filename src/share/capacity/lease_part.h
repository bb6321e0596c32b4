// Leases out of a host's part of a tag, in parts of the whole limit.
#pragma once

#include "base/time.h"

namespace dthrottle {

struct LeaseUse {
  double wants = 0;
  double has = 0;    // leased out
  double urges = 0;    // beyond `wants`, for neighbours to go by
};

struct LeasePart {
  double part = 0;     // that may be leased out until then
  double share = 0;    // that should be: neighbours wait for the rest of the part
  BootInstant until{};
};

}    // namespace dthrottle
