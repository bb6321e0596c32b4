// Measures what load shedding goes by, from the kernel's files.
#pragma once

#include <string>

#include "base/result.h"
#include "shed/signal.h"

namespace dthrottle {

struct GaugeReading {
  double value = 0;       // bytes, or percent for pressure
  double maximum = 0;     // the most that it can be, more than 0; 100 for pressure
  bool limited = true;    // false: a group without a maximum of its own, measured against the host
};

// What a signal is read from, for people and for ReadGauge: a file, or the directory of a group. Fails for
// ShedSignal::kCgroup where the daemon's own group is meant and there is none of version 2.
Result<std::string> GaugeSource(ShedSignal signal, const std::string& cgroup);

// Reads it now, which can take milliseconds. REQUIRES: signal is not kReported; `source` is GaugeSource's.
Result<GaugeReading> ReadGauge(ShedSignal signal, const std::string& source);

}    // namespace dthrottle
