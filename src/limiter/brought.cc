#include "limiter/brought.h"

#include <bit>

#include "bucket/table_lookup.h"

namespace dthrottle {

namespace {

// A depth in the 23 bits that a slot has for its limit: a float without its sign and its last 8 bits, rounded up, so
// that a bucket that was spent to the last token is not taken for one in debt.
LimitIndex Packed(Ticks depth) {
  return (std::bit_cast<std::uint32_t>(static_cast<float>(depth)) >> 8) + 1;
}

float Unpacked(LimitIndex packed) {
  return std::bit_cast<float>(packed << 8);
}

}    // namespace

std::optional<Shape> BroughtLimit::ToShape() const {
  constexpr auto kRefillMax = static_cast<std::int64_t>(kRefillSecondsMax);
  constexpr std::int64_t kTicksPerSecond = 1'000'000'000 * kTicksPerNanosecond;
  if (burst < 1 || burst > static_cast<std::int64_t>(kBurstMax) || count < 1 || period_s < 1) return std::nullopt;
  if (period_s > kRefillMax) return std::nullopt;
  const Ticks interval = period_s * kTicksPerSecond / count;
  if (interval < kTicksPerNanosecond || interval > kRefillMax * kTicksPerSecond / burst) return std::nullopt;
  return Shape{interval, burst * interval};
}

BroughtLimits::BroughtLimits(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id,
                             const TableKeys& fresh_keys, Instant now)
    : table_(Table::Open(region, {boot_id, 0}, fresh_keys, false, *this, now).table) {}

Verdict BroughtLimits::Answer(const Query& query, const Shape& shape, Standing& standing, Instant now) {
  const Table::Probe probe = table_->Aim(query.tag);
  Table::Shard shard(*table_, probe.hash);
  Slot* slot = shard.Find(query.tag, probe, now);
  standing = {shape, slot != nullptr ? slot->bucket : Bucket()};
  if (!standing.bucket.Take(shape, query.cost, now)) {
    if (slot != nullptr) shard.Refused(slot);
    return Verdict::kThrottle;
  }
  if (slot == nullptr && !standing.bucket.IsFull(now)) {
    shard.Insert(query.tag, standing.bucket, Packed(shape.depth), Source::kQuery, now);
  } else if (slot != nullptr) {
    slot->bucket = standing.bucket;
    slot->limit = Packed(shape.depth) & kLimitIndexMax;
  }
  return Verdict::kServe;
}

Standing BroughtLimits::GiveBack(const Query& query, const Shape& shape, Instant now) {
  Table::Shard shard(*table_, table_->Hash(query.tag));
  Slot* slot = shard.Find(query.tag, now);
  if (slot == nullptr) return {shape, Bucket()};
  slot->bucket.Credit(shape, query.cost, now);
  return {shape, slot->bucket};
}

double BroughtLimits::Drained(const Slot& slot, Instant now) {
  const Shape shape{1, static_cast<Ticks>(Unpacked(slot.limit))};
  return slot.bucket.Drained(shape, now);
}

// All are one class.
Claim BroughtLimits::ClaimOf(const Slot& slot, Instant now) const {
  return {0, Drained(slot, now) > 0.5};
}

bool BroughtLimits::Restore(const Tag&, Slot& slot, WrittenFor, Instant now) const {
  return slot.limit != 0 && Unpacked(slot.limit) < 0x1p62f && Unpacked(slot.limit) >= 1 && Drained(slot, now) <= 1;
}

}    // namespace dthrottle
