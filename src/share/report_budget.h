// How far a host may leave what its peers foretell before it reports: a threshold in tokens that keeps a tag to one
// entry a period in the long run. It follows the entries that were sent too many, and where there are none it stays
// where it has to be, so that the entries of the first periods are made up for.
#pragma once

#include "share/pace.h"

namespace dthrottle {

// A demand has moved if it makes a threshold of tokens in so long, in seconds.
inline constexpr double kMovedWithin = 0.25;

class ReportBudget {
 public:
  ReportBudget();

  // `dt` seconds have passed.
  void Step(const Pace& pace, double dt);
  // A report went out; `strayed`: because of the threshold, so a higher one makes fewer of them.
  void Sent(const Pace& pace, bool strayed);

  Tokens Threshold(const Pace& pace) const;

 private:
  double saved_;    // entries of one a period that were not sent; negative: sent too many
  double base_;     // logarithm of the threshold when there are none
};

}    // namespace dthrottle
