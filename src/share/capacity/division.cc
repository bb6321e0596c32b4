#include "share/capacity/division.h"

#include <algorithm>

#include "share/inspection.h"

namespace dthrottle {

Division::Division(LimiterCore& core, Ways&) : core_(core) {
  for (std::size_t i = 0; i < core.tally.lanes(); ++i) notes_.push_back(std::make_unique<Notes>());
}

Shape Division::ShapeOf(const Tag& tag, const Limit& limit, Instant now) {
  return ShapeOf(EntryOf(tag, limit), limit, now);
}

void Division::Inspect(const TagAt& at, Inspection& seen, Instant now) {
  seen.part = parts_.PartNow(EntryOf(at.tag, at.limit), BootTime(now));
  seen.bucket = owed_.Honest(at.hash, seen.bucket, seen.shape, now);
}

// While parts are not lent every host has the reserve. That moves no tokens: what the hosts lose by it until they are lent
// again is more than a bucket can gain.
void Division::SetPart(const Tag& tag, const CapacityKey& key, double part, Instant now) {
  const std::uint64_t hash = core_.table->Hash(tag);
  Table::Shard shard(*core_.table, hash);
  PartTable::Entry* const entry = parts_.Find(key);
  if (entry == nullptr) return;
  const double before = parts_.PartWhileLent(std::exchange(entry->part, part)), after = parts_.PartWhileLent(part);
  Slot* const slot = shard.Find(tag, now);
  if (slot == nullptr || before == after || !core_.limit(slot->limit).divided) return;
  const Shape& whole = core_.limit(slot->limit).shape;
  const Shape from = PartOf(whole, before), to = PartOf(whole, after);
  slot->bucket = owed_.Honest(hash, slot->bucket, from, now).WithTokensOf(from, to, now);
  if (slot->bucket.Debt(to, now) > 0) owed_.Note(hash, slot->bucket, now);
}

// Parts of a rate sum to the rate, but no host's part of the burst is less than a token.
std::optional<Tokens> Division::Bound(const Limit& limit, std::span<const PeerAge> peers) const {
  return std::max(static_cast<double>(peers.size() + 1) - limit.shape.burst(), 0.0);
}

void Division::Adopted() {
  for (NotedTag noted; TakeNoted(noted);) continue;
  if (core_.in_flight != nullptr && place_parts_ == nullptr) place_parts_ = std::make_unique<PlaceParts>();
}

bool Division::TakeNoted(NotedTag& noted) {
  return std::any_of(notes_.begin(), notes_.end(), [&](auto& notes) { return notes->Take(noted); });
}

CapacityKey Division::KeyOf(const Tag& tag, const Limit& limit) const {
  return CapacityKeyOf(core_.rules->number(limit.rule), tag.bytes, tag.is_digest);
}

}    // namespace dthrottle
