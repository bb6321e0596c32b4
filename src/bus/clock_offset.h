// Reads a peer's clock as ours. Frames take a while, never less than nothing, so the least difference between arrival
// and sending is the best guess; a window forgets it again, because clocks drift. What is left in the guess is the
// quickest way of the wire, some tens of microseconds: instants of a peer come out that much too late.
//
// A monotonic clock stands still while its machine is suspended or its virtual machine paused. A host that slept sees all
// other clocks far ahead, and others see its own far behind. What was known before is forgotten then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/time.h"

namespace dthrottle {

class ClockOffset {
 public:
  // Something sent at `theirs` came at `ours`. False, and passed over, if that clock would suddenly be far ahead. The
  // third time in a row it is believed: this host has slept. The other host has slept if its clock stays far behind for
  // three seconds, by the same amount within one: the delay of a slow way varies, or ends sooner.
  bool Add(Instant theirs, Instant ours) {
    std::int64_t difference;
    if (__builtin_sub_overflow(Count(ours), Count(theirs), &difference)) difference = kKnownMax;
    difference = std::min(difference, kKnownMax);
    const std::int64_t least = std::min(before_, recent_);
    const bool ahead = known() && IsBeyond(least, difference, kAheadMax);
    if (ahead && ++ahead_ < kTimes) return false;
    if (ahead || HasSlept(difference, known() && IsBeyond(difference, least, kBehindMax), ours)) {
      before_ = recent_ = kUnknown;
      behind_ = 0;
    }
    ahead_ = 0;
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

  // Never later than `now`, which is also the answer as long as nothing is known. Never more than a day ago, so that
  // sums with it do not overflow: peers may claim any instant.
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
  static constexpr Duration kBehindMax = std::chrono::seconds(3), kBehindFor = kBehindMax;
  static constexpr Duration kSame = std::chrono::seconds(1);
  static constexpr int kTimes = 3;    // in a row
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max(), kKnownMax = kUnknown - 1;

  static std::int64_t Count(Instant t) { return t.time_since_epoch().count(); }

  // Whether a exceeds b by more than that.
  static bool IsBeyond(std::int64_t a, std::int64_t b, Duration most) {
    std::int64_t beyond;
    return __builtin_sub_overflow(a, b, &beyond) ? a > b : beyond > most.count();
  }

  bool HasSlept(std::int64_t difference, bool behind, Instant ours) {
    if (!behind) {
      behind_ = 0;
    } else if (behind_ == 0 || IsBeyond(difference, slept_, kSame) || IsBeyond(slept_, difference, kSame)) {
      behind_ = 1;
      slept_ = difference;
      behind_since_ = ours;
    } else {
      ++behind_;
    }
    return behind_ >= kTimes && ours - behind_since_ >= kBehindFor;
  }

  std::int64_t before_ = kUnknown, recent_ = kUnknown;    // nanoseconds from their clock to ours, by half window
  Instant since_{};                                       // of the recent half
  int ahead_ = 0, behind_ = 0;                            // how often in a row it was far ahead, or far behind
  std::int64_t slept_ = 0;                                // the difference when it was behind first
  Instant behind_since_{};
};

}    // namespace dthrottle
