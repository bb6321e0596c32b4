// What frames between hosts travel over beside ZeroMQ, which io has. Each way is a folder here, and only list.cc includes
// them: a way is removed by removing its folder and its lines there and in src/meson.build.
#pragma once

#include "base/result.h"
#include "config/settings.h"
#include "io/carrier.h"

namespace dthrottle {

// Whether this program has what the settings want, for --check and before a start.
Result<void> CheckCarrier(const Settings& settings);

// Empty: ZeroMQ. REQUIRES: CheckCarrier.
MakeCarrier CarrierOf(const Settings& settings);

}    // namespace dthrottle
