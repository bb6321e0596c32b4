// What is counted, for Prometheus.
#pragma once

#include <string>
#include <string_view>

#include "admin/admin.h"

namespace dthrottle {

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// Everything in Counts() in the text format.
std::string RenderMetrics(AdminHost& host, Instant now);

}    // namespace dthrottle
