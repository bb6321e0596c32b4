#include "limiter/kept_penalties.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/state.h"
#include "limiter/limit_of.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

constexpr std::uint32_t kVersion = 2;

struct KeptPenalty {
  std::string tag;
  bool is_digest = false;
  Instant until{};
  Duration length{};
  bool heard = false;

  static void Fields(auto& state, auto& self) {
    state(self.tag, self.is_digest, self.until, self.length, self.heard);
    state.Check(self.tag.size() <= kTagBytesMax && self.until >= Instant() && self.length >= Duration::zero());
  }
};

struct KeptPenalties {
  std::vector<KeptPenalty> penalties;

  static void Fields(auto& state, auto& self) { state(self.penalties); }
};

// Calls use(hash, terms) with what the tag's rule says of penalties, null: nothing, with the tag's shard locked. A digest
// without a bucket has a rule that nobody knows.
template <class Use>
void WithTerms(LimiterCore& core, const Tag& tag, Instant now, Use&& use) {
  const Query query{tag};
  const std::uint64_t hash = core.table->Hash(tag);
  Table::Shard shard(*core.table, hash);
  const Slot* const slot = shard.Find(tag, now);
  if (slot == nullptr && tag.is_digest) return;
  const auto index = LimitOf(*core.rules, query, slot);
  const bool penalizes = index.has_value() && core.limit(*index).penalizes;
  use(hash, penalizes ? &core.rules->penalty(core.limit(*index)) : nullptr);
}

void Restore(LimiterCore& core, const KeptPenalty& kept, Instant now) {
  const Tag tag{kept.tag, kept.is_digest};
  WithTerms(core, tag, now, [&](std::uint64_t hash, const Penalty* terms) {
    if (terms == nullptr) return;
    core.penalties.Restore({KeptTag(tag), kept.until, kept.length, kept.heard}, hash, *terms, now);
  });
}

}    // namespace

std::string KeepPenalties(Limiter& limiter, Instant now) {
  LimiterCore& core = limiter.ways().core();
  KeptPenalties kept;
  core.penalties.ForEach(core.ShardLock(), now, [&](const PenaltyAt& its) {
    const Tag tag = its.tag.tag();
    kept.penalties.push_back({std::string(tag.bytes), tag.is_digest, its.until, its.length, its.heard});
  });
  std::ranges::sort(kept.penalties, std::greater(), &KeptPenalty::until);    // where there is less room, these stay
  return kept.penalties.empty() ? std::string() : WriteState(kVersion, kept);
}

void RestorePenalties(Limiter& limiter, std::string_view kept, Instant now) {
  KeptPenalties read;
  if (!ReadState(kept, kVersion, read)) return;
  for (const KeptPenalty& its : read.penalties) Restore(limiter.ways().core(), its, now);
}

void ShortenPenalties(Limiter& limiter, Instant now) {
  LimiterCore& core = limiter.ways().core();
  std::vector<KeptTag> tags;
  core.penalties.ForEach(core.ShardLock(), now, [&](const PenaltyAt& its) { tags.push_back(its.tag); });
  for (const KeptTag& its : tags) {
    WithTerms(core, its.tag(), now, [&](std::uint64_t hash, const Penalty* terms) {
      terms != nullptr ? core.penalties.Shorten(hash, *terms, now) : core.penalties.Forget(hash);
    });
  }
}

}    // namespace dthrottle
