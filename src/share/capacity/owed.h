// What tags owe on this host beyond an empty bucket, under limits that hosts divide: what holds have cost more than was
// held.
//
// A bucket keeps the instant at which it is full, and under a part that has changed since, that may look like debt where
// nothing is owed. So debt is forgiven unless it stands here. In memory only: a process that is killed forgives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/side_table.h"
#include "bucket/bucket.h"

namespace dthrottle {

// Guarded by the lock of the tag's shard, as every SideTable.
class Owed {
 public:
  static constexpr std::size_t kTags = std::size_t{1} << 12;    // that owe something at once; beyond, the least is forgiven

  // The bucket is in debt because of what has been charged.
  void Note(std::uint64_t hash, const Bucket& bucket, Instant now) {
    const auto least = [&](std::size_t place) { return std::optional(table_[place].UntilFull(now)); };
    const std::size_t at = table_.FindOrPut(hash, least);
    if (at != table_.kNone) table_[at] = bucket;
  }

  // The bucket without debt that is not owed.
  Bucket Honest(std::uint64_t hash, const Bucket& bucket, const Shape& shape, Instant now) const {
    const Ticks debt = bucket.Debt(shape, now);
    if (debt == 0) return bucket;
    const std::size_t at = table_.Find(hash);
    const Ticks owed = at != table_.kNone ? table_[at].Debt(shape, now) : 0;
    return owed == 0 ? bucket.WithoutDebt(shape, now) : owed < debt ? table_[at] : bucket;
  }

 private:
  SideTable<Bucket, 8> table_{kTags};
};

}    // namespace dthrottle
