// Measures what load shedding goes by, and what control groups leave, from the kernel's files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

// How many bytes more the groups that a process is in, and those above them, let it take before the kernel ends one of
// their processes. File pages that the kernel can drop and swap space that is free count as left. None: no group that can
// be seen has a limit. `groups` is what /proc/PID/cgroup says, `mounted` where groups are mounted. Takes milliseconds.
std::optional<std::uint64_t> MemoryLeft(std::string_view groups, const std::string& mounted);
// The same for this process.
std::optional<std::uint64_t> MemoryLeft();

}    // namespace dthrottle
