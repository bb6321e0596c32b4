// When the owner's thread looks at watches that nobody noted as due: demand that ceases is news too. All active watches
// are gone through in rounds, a part of the places at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/time.h"

namespace dthrottle {

class Rounds {
 public:
  static constexpr int kParts = 5;
  static constexpr Duration kEveryMax = std::chrono::milliseconds(200);    // between two parts

  // When the next part is due.
  Instant at() const { return at_; }
  // Its places, [first, second) of so many.
  std::pair<std::size_t, std::size_t> Part(std::size_t places) const {
    return {next_place_, std::min(next_place_ + (places + kParts - 1) / kParts, places)};
  }

  // A watch wants parts to follow each other so fast, from now on.
  void Hasten(Duration every, Instant now) {
    Expect(every);
    every_ = std::min(every_, coming_);
    at_ = std::min(at_, now + every_);
  }
  // And in the next round, whether or not it was looked at in this one.
  void Expect(Duration every) { coming_ = std::min(coming_, every); }

  // The part that ends there has been looked at.
  void Passed(std::size_t end, std::size_t places) {
    next_place_ = end < places ? end : 0;
    if (next_place_ == 0) every_ = std::exchange(coming_, Duration::max());
  }
  void GoOn(bool goes_on, Instant now) { at_ = goes_on ? now + std::min(every_, kEveryMax) : Instant::max(); }

 private:
  Instant at_ = Instant::max();
  Duration every_ = Duration::max(), coming_ = Duration::max();    // between two parts, in this round and in the next
  std::size_t next_place_ = 0;
};

// Spaces early reports. Each tag sends about one a period, so where many do, their reports gather: of all hosts
// together one hears no more than kHeard a second in the long run, which is some 5 % of a core, but of each kOfHost.
class EarlySpacing {
 public:
  // The next one may leave from then on.
  Instant from() const { return from_; }

  void Left(double hosts, Instant now) {
    const std::chrono::duration<double> every(1 / std::max(kHeard / hosts, kOfHost));
    until_ = std::max(until_, now) + std::chrono::duration_cast<Duration>(every);
    from_ = until_ - std::chrono::duration_cast<Duration>(kAtOnce * every);
  }

 private:
  static constexpr double kHeard = 1500, kOfHost = 4, kAtOnce = 20;

  Instant until_{}, from_ = Instant::min();    // the time until then is spent by those that have left
};

}    // namespace dthrottle
