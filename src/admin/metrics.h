// The counts as Prometheus scrapes them: its text format 0.0.4.
//
// Every count of counts.h is a series. What is counted by rule or by peer, and histograms, are in the table of
// families in metrics.cc. Labels have only values that settings bound: rules, peers, verdicts; never a tag, of which
// there may be millions and which strangers choose. So an answer has no more than
//
//   kMetricsBytes + rules x kMetricsBytesPerRule + peers x kMetricsBytesPerPeer
//
// bytes, whatever the daemon has seen. There are up to 1000 rules, with names of up to 64 bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "admin/admin.h"
#include "base/time.h"

namespace dthrottle {

// To the letter: Prometheus 3 refuses an answer with another one.
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

inline constexpr std::size_t kMetricsBytes = 68 * 1024;
inline constexpr std::size_t kMetricsBytesPerRule = 3072;
inline constexpr std::size_t kMetricsBytesPerPeer = 6144;

// All metrics. The owner's thread.
std::string RenderMetrics(AdminHost& host);

// For the manual, in mdoc: that bound, and a list of the metrics that are by rule or by peer, and of histograms.
std::string RenderMetricsManual();

}    // namespace dthrottle
