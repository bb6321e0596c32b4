// Graphs #1 and #2 of DST Example 2, which prints pictures only: the tree, and the tree with eleven links more, that
// reproduce every digit of Tables 3 and 4.
#pragma once

#include "base/check.h"
#include "capacity/topology.h"

namespace dthrottle {

inline constexpr std::uint32_t kDstNodes = 10;

// REQUIRES: number is 1 or 2.
inline Pairs DstPairs(int number) {
  DT_CHECK(number == 1 || number == 2);
  Pairs pairs{{0, 6}, {0, 1}, {1, 2}, {1, 4}, {2, 3}, {4, 5}, {6, 7}, {6, 9}, {7, 8}};
  const Pairs more{{0, 2}, {0, 3}, {0, 4}, {0, 5}, {2, 7}, {3, 6}, {3, 7}, {5, 6}, {5, 9}, {6, 8}, {8, 9}};
  if (number == 2) pairs.insert(pairs.end(), more.begin(), more.end());
  return pairs;
}

}    // namespace dthrottle
