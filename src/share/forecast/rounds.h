// When the owner's thread looks at watches that nobody noted as due: demand that ceases is news too. It goes through all
// active watches in rounds, a part of them at a time: some of the words that have a bit for each.
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

  // The next part is due then.
  Instant at() const { return at_; }
  // Returns its words, [first, second) of so many.
  std::pair<std::size_t, std::size_t> Part(std::size_t words) const {
    return {next_, std::min(next_ + (words + kParts - 1) / kParts, words)};
  }

  // A watch wants parts to follow each other so fast, in this round and in the next.
  void Hasten(Duration every, Instant now) {
    Expect(every);
    every_ = std::min(every_, coming_);
    at_ = std::min(at_, now + every_);
  }
  // A watch that this round passes over wants that in the next round only.
  void Expect(Duration every) { coming_ = std::min(coming_, every); }

  // The thread has looked at the part that ends there.
  void Passed(std::size_t end, std::size_t words) {
    next_ = end < words ? end : 0;
    if (next_ == 0) every_ = std::exchange(coming_, Duration::max());
  }
  void GoOn(bool goes_on, Instant now) { at_ = goes_on ? now + std::min(every_, kEveryMax) : Instant::max(); }

 private:
  Instant at_ = Instant::max();
  Duration every_ = Duration::max(), coming_ = Duration::max();    // between two parts, in this round and in the next
  std::size_t next_ = 0;
};

}    // namespace dthrottle
