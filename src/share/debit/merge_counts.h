// What hosts count of what their peers report.
#pragma once

#include <cstdint>

#include "base/tokens.h"

namespace dthrottle {

// What became of entries that peers sent.
struct MergeCounts {
  std::uint64_t entries = 0;                // all of them
  std::uint64_t unmatched = 0;              // entries under no rule here, or under one that is not shared
  std::uint64_t unrecorded = 0;             // entries without room in the table
  std::uint64_t expired = 0;                // hits dropped because they were older than the horizon
  std::uint64_t penalties_cut = 0;          // entries dropped because a peer told of too many penalties
  std::uint64_t new_tags_cut = 0;           // entries dropped because a peer named too many tags without a bucket here
  std::uint64_t disbelieved = 0;            // demands that count for less than was announced: hits do not bear them out
  std::uint64_t hits_disbelieved = 0;       // hits dropped because no host can have served so many under our limit
  std::uint64_t returned = 0;               // tokens that came back from peers' holds
  std::uint64_t returns_disbelieved = 0;    // tokens that peers give back beyond what was charged for them
  std::uint64_t debts_disbelieved = 0;      // buckets of snapshots that one host cannot have taken so far into debt
};

// The part of these counts that one peer made.
struct PeerMergeCounts {
  std::uint64_t new_tags_cut = 0;
  std::uint64_t penalties_cut = 0;
  std::uint64_t hits_disbelieved = 0;
};

// What peers' hits did to the buckets of a rule.
struct DebitTotals {
  std::uint64_t hits = 0;     // debited
  Tokens overadmitted = 0;    // of debt that they made: served elsewhere beyond the limit before all hosts knew
  bool some_back = false;     // came back, or was said to: any more of them may
};

}    // namespace dthrottle
