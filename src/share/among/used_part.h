// The part of what questions cost that they use in the end, measured over those that were served lately: holds are
// settled with less than they took, and takes are refunded. A question that is refused would have used as much.
#pragma once

#include <algorithm>
#include <optional>

#include "base/tokens.h"

namespace dthrottle {

class UsedPart {
 public:
  // A question was served for so many tokens.
  void Add(Tokens cost) {
    cost_ = kKept * cost_ + cost;
    back_ = kKept * back_;
  }
  // So many of them came back; negative: more were used.
  void ComesBack(Tokens tokens) { back_ += tokens; }

  // From 0 to 1, and exactly 1 while nothing came back; none: nothing was measured. It is 1 where more was used than
  // was paid, because one question that used very much would otherwise keep others from being served.
  std::optional<double> part() const {
    if (cost_ <= 0) return std::nullopt;
    return std::clamp(1 - back_ / cost_, 0.0, 1.0);
  }

 private:
  static constexpr double kKept = 31.0 / 32;    // after one more question

  Tokens cost_ = 0, back_ = 0;
};

// The part that questions of either kind use.
struct UsedParts {
  UsedPart takes;    // counted when they are served
  UsedPart holds;    // counted when they are settled

  const UsedPart& of(bool held) const { return held ? holds : takes; }
};

}    // namespace dthrottle
