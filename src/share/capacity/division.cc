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
  seen.part = parts_.PartNow(EntryOf(at.tag, at.limit), now);
  seen.bucket = owed_.Honest(at.hash, seen.bucket, seen.shape, now);
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
