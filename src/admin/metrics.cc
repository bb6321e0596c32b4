#include "admin/metrics.h"

#include <fmt/format.h>

namespace dthrottle {

std::string RenderMetrics(AdminHost& host, Instant) {
  const Snapshot snapshot = TakeSnapshot(host.limiter(), host.Counts());
  std::string out;
  for (const Count& count : Counts()) {
    out += fmt::format("# TYPE dthrottle_{0} gauge\ndthrottle_{0} {1}\n", count.name, count.value(snapshot));
  }
  return out;
}

}    // namespace dthrottle
