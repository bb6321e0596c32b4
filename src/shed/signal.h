// What a host is measured by, and between which bounds it sheds.
#pragma once

#include <cstdint>

#include "base/names.h"
#include "shed/curve.h"

namespace dthrottle {

enum class ShedSignal {
  kCgroup,      // memory of a control group, bytes
  kHost,        // memory of the host, bytes
  kPressure,    // share of time in which something waited for memory (PSI "some", 10 s), percent
  kReported,    // a number that an application reports
};
DT_NAMES(ShedSignal, "cgroup", "host", "pressure", "reported")

inline constexpr bool IsMemory(ShedSignal signal) {
  return signal == ShedSignal::kCgroup || signal == ShedSignal::kHost;
}

// Rules that shed have one of so many priorities, 0 the least important.
inline constexpr std::size_t kShedPriorities = 10;

// One end of the interval, as an operator writes it.
struct ShedBound {
  enum class Kind : std::uint8_t { kUnset, kNumber, kBytes, kPercent };
  Kind kind = Kind::kUnset;
  double value = 0;    // bytes, percent, or what is reported

  friend bool operator==(const ShedBound&, const ShedBound&) = default;
};

// What memory signals begin and end at where the settings do not say, in percent of the maximum. The end leaves room
// for what is allocated between two samples.
inline constexpr ShedBound kDefaultLow{ShedBound::Kind::kPercent, 90};
inline constexpr ShedBound kDefaultHigh{ShedBound::Kind::kPercent, 98};

// The interval in the unit of the signal. `maximum` is the most that a memory signal can be, and 100 for pressure.
// REQUIRES: both bounds are of one kind, low <= high.
inline ShedCurve CurveOf(CurveShape shape, ShedBound low, ShedBound high, double maximum) {
  if (low.kind == ShedBound::Kind::kUnset) low = kDefaultLow, high = kDefaultHigh;
  const double unit = low.kind == ShedBound::Kind::kPercent ? maximum / 100 : 1;
  return {low.value * unit, high.value * unit, shape};
}

}    // namespace dthrottle
