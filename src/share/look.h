// A look at a tag of which an owner or a site is to speak: its limit, its bucket and what is foretold of it.
#pragma once

#include <cstdint>
#include <optional>

#include "share/pace_of.h"
#include "share/said_tag.h"
#include "share/ways.h"

namespace dthrottle {

// While the tag's shard is locked.
struct Look {
  const Limit& limit;
  const Slot* slot;
  std::optional<Foretold> foretold;    // none: the tag is not watched
  Pace pace;

  // A host that has heard nothing lower believes in a full bucket at most, so it is not far wrong.
  bool nearly_full(Instant now) const { return !foretold && pace.NearlyFull(level(now)); }
  Tokens level(Instant now) const { return foretold ? foretold->level : Bucket(bucket()).Level(limit.shape, now); }
  Bucket bucket() const { return slot != nullptr ? slot->bucket : Bucket(); }
};

// Calls see(look) unless the tag has no limit any more. `peer`: to whom what is foretold is said.
template <class See>
bool LookAt(Ways& ways, const Tag& said, std::uint64_t hash, std::uint32_t peer, Instant now, See&& see) {
  const LimiterCore& core = ways.core();
  Table::Shard shard(*core.table, hash);
  const Tag tag = TableTag(said);
  const Slot* const slot = shard.Find(tag, now);
  const auto index = LimitOfSaid(*core.rules, slot, said);
  if (!index || !core.limit(*index).shared) return false;
  const Limit& limit = core.limit(*index);
  const TagAt at{tag, hash, limit, slot};
  see(Look{limit, slot, ways.With(limit, [&](auto& way) { return way.ForetoldOf(at, peer, now); }),
           PaceOf(core, limit)});
  return true;
}

}    // namespace dthrottle
