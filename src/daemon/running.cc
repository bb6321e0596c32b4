#include "daemon/running.h"

#include <fmt/format.h>

#include "io/clock.h"
#include "io/process.h"

namespace dthrottle {

Running::Running(Settings in_force, Log& log_of_all)
    : settings_in_force(std::move(in_force)), log(log_of_all), started(Now()), started_since_1970(WallClock()) {}

void Running::Audit(std::string_view text) const {
  if (settings_in_force.admin.audit) log.Say(LogLevel::kNotice, fmt::format("audit: {}", text));
}

void Running::AuditOfAnyone(std::string_view text) const {
  if (settings_in_force.admin.audit) log.Notice("audit: {}", text);
}

ProcessCounts Running::Counts() const {
  ProcessCounts counts;
  counts.started = started_since_1970;
  counts.uptime = Now() - started;
  const ProcessUse use = ReadProcessUse();
  counts.cpu = use.cpu;
  counts.resident_bytes = use.resident_bytes;
  counts.log_suppressed = log.suppressed();
  reloading->Count(counts);
  for (const Part* const part : list) part->Count(counts);
  return counts;
}

}    // namespace dthrottle
