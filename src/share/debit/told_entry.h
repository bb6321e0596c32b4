// An entry of a report, and what became of entries that peers sent.
#pragma once

#include <cstdint>

#include "base/allowance.h"
#include "base/tag.h"
#include "bucket/table_lookup.h"
#include "bus/entries.h"
#include "rule/rulebook.h"

namespace dthrottle {

// What became of entries that peers sent.
struct MergeCounts {
  std::uint64_t entries = 0;              // all of them
  std::uint64_t unmatched = 0;            // entries under no rule here, or under one that is not shared
  std::uint64_t unrecorded = 0;           // entries without room in the table
  std::uint64_t expired = 0;              // hits dropped because they were older than the horizon
  std::uint64_t penalties_cut = 0;        // entries dropped because a peer told of too many penalties
  std::uint64_t new_tags_cut = 0;         // entries dropped because a peer named too many tags that have no bucket here
  std::uint64_t disbelieved = 0;          // demands that count for less than was announced: hits do not bear them out
  std::uint64_t hits_disbelieved = 0;     // hits dropped because no host can have served so many under our limit
  std::uint64_t returned = 0;             // tokens that came back from peers' holds
  std::uint64_t returns_disbelieved = 0;    // tokens that peers give back and were not charged for, or not known to be
  std::uint64_t debts_disbelieved = 0;    // buckets of snapshots that one host cannot have taken so far into debt
};

// The part of these counts that one peer made.
struct PeerMergeCounts {
  std::uint64_t new_tags_cut = 0;
  std::uint64_t penalties_cut = 0;
  std::uint64_t hits_disbelieved = 0;
};

// What one peer may still say, and what it said beyond.
struct HeardPeer {
  std::uint32_t number;
  Allowance new_tags, penalties;
  PeerMergeCounts counts{};
};

// An entry and the bucket that it is about, with the shard locked.
struct ToldEntry {
  const Entry& entry;
  Table::Shard& shard;
  Tag tag;
  std::uint64_t hash;
  Slot* slot;
  LimitIndex index;
};

}    // namespace dthrottle
