// What each count of a snapshot means. The table in counts.cc is the one place that names a count: `stats`, its JSON, the
// metrics for Prometheus and the manual follow it. Counts by rule and by peer are in metrics.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "admin/snapshot.h"

namespace dthrottle {

enum class CountKind {
  kCounter,    // begins at 0 with the daemon and only grows
  kGauge,      // how things are now
  kSum,        // a counter that is no metric by itself, but the sum over series that are
};

struct Count {
  std::string_view name;
  std::string_view unit;    // empty for a plain number
  std::string_view meaning;
  double (*value)(const Snapshot&);
  CountKind kind = CountKind::kCounter;
  std::string_view metric = {};    // the metric's name, or the series that are summed up; empty: as MetricName says
};

// dthrottled_, the name, the unit, and _total behind a counter.
std::string MetricName(const Count& count);

// Whether the value is never a fraction.
bool IsWhole(const Count& count);

std::span<const Count> Counts();

// Text with each sentence on a line of its own, as mdoc wants it.
std::string SentencesByLine(std::string_view text);

// The counts as a list for the manual, in mdoc.
std::string RenderCountsManual();

}    // namespace dthrottle
