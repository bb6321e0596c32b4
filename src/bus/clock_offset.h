// Reads a peer's clock as ours. Frames take a while, never less than nothing, so the least difference between arrival
// and sending is the best guess; a window forgets it again, because clocks drift. What is left in the guess is the
// quickest way of the wire, some tens of microseconds: instants of a peer come out that much too late.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/time.h"

namespace dthrottle {

class ClockOffset {
 public:
  // Something sent at `theirs` came at `ours`. False, and passed over, if that clock would suddenly be far ahead. A
  // host that slept sees all other clocks so; the third time in a row it is believed, and what was known before is
  // forgotten.
  bool Add(Instant theirs, Instant ours) {
    std::int64_t difference;
    if (__builtin_sub_overflow(Count(ours), Count(theirs), &difference)) difference = kKnownMax;
    difference = std::min(difference, kKnownMax);
    std::int64_t least;
    if (__builtin_sub_overflow(std::min(before_, recent_), kAheadMax.count(), &least)) least = kLeast;
    const bool ahead = known() && difference < least;
    if (!ahead) {
      ahead_ = 0;
    } else if (++ahead_ < kAheadTimes) {
      return false;
    } else {
      before_ = recent_ = kUnknown;
      ahead_ = 0;
    }
    if (ours - since_ >= kHalfWindow || !known()) {
      before_ = ours - since_ < 2 * kHalfWindow ? recent_ : kUnknown;
      recent_ = difference;
      since_ = ours;
    }
    recent_ = std::min(recent_, difference);
    return true;
  }

  bool known() const { return recent_ != kUnknown; }

  static void Fields(auto& state, auto& self) { state(self.before_, self.recent_, self.since_); }

  // Never later than `now`, which is also the answer as long as nothing is known, and never more than a day ago, so
  // that whoever reckons with it need not fear an overflow: peers may claim any instant.
  Instant ToOurs(Instant theirs, Instant now) const {
    if (!known()) return now;
    std::int64_t ours;
    const std::int64_t offset = std::min(before_, recent_);
    if (__builtin_add_overflow(Count(theirs), offset, &ours)) return offset < 0 ? now - kAgeMax : now;
    return std::clamp(FromNanoseconds(ours), now - kAgeMax, now);
  }

 private:
  static constexpr Duration kHalfWindow = std::chrono::minutes(5), kAgeMax = std::chrono::hours(24);
  static constexpr Duration kAheadMax = std::chrono::seconds(5);
  static constexpr int kAheadTimes = 3;
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max(), kKnownMax = kUnknown - 1;
  static constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

  static std::int64_t Count(Instant t) { return t.time_since_epoch().count(); }

  std::int64_t before_ = kUnknown, recent_ = kUnknown;    // nanoseconds from their clock to ours, by half window
  Instant since_{};                                       // of the recent half
  int ahead_ = 0;                                         // how often in a row it was far ahead
};

}    // namespace dthrottle
