// Limits that applications bring along: each query says burst and rate, and the tag alone says which bucket. It is what
// redis-cell does, for those who come from there. Such a limit knows no rules, is not shared with other hosts, and has
// its buckets in a table of its own, so that a tag here and the same tag under a rule have nothing to do with each
// other.
//
// A bucket is the instant at which it is full, which is read under the numbers of each query. Other numbers leave the
// time that the bucket needs to fill as it was, as in redis-cell. The depth under which a bucket was last spent from is
// kept beside it, rounded up, for the one thing that happens without a query: choosing what is forgotten when the table
// has no room (bucket/forget.h), where all of them count as under one rule.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "base/tag.h"
#include "base/time.h"
#include "bucket/table.h"
#include "limiter/limiter.h"
#include "query/over_long.h"
#include "query/verdict.h"

namespace dthrottle {

// A limit as a query says it: after a rest `burst` tokens, and `count` more every `period_s` seconds.
struct BroughtLimit {
  std::int64_t burst;
  std::int64_t count;
  std::int64_t period_s;

  // None if the numbers are not within the bounds of bucket/bucket.h.
  std::optional<Shape> ToShape() const;
};

class BroughtLimits final : private SlotPolicy {
 public:
  // Takes over or clears the table in `region` (see Table::Open), which must outlive this object.
  BroughtLimits(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, const TableKeys& fresh_keys,
                Instant now);

  // Decides a query under this limit, and says what it left. One thread.
  Verdict Answer(const Query& query, const Shape& shape, Standing& standing, Instant now);

  // Gives back `query.cost` tokens; beyond full they are lost.
  Standing GiveBack(const Query& query, const Shape& shape, Instant now);

  // For the digests of over-long tags.
  const DigestKey& digest_key() const { return table_->keys().digest; }

  Table& table() { return *table_; }

 private:
  static double Drained(const Slot&, Instant now);
  Claim ClaimOf(const Slot&, Instant now) const override;
  void Forgot(const Slot&, unsigned) override {}
  bool Reshape(const Tag&, Slot&, WrittenFor, Instant) const override { return true; }
  bool Restore(const Tag&, Slot&, WrittenFor, Instant now) const override;

  std::unique_ptr<Table> table_;
};

}    // namespace dthrottle
