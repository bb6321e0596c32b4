// What a query's verdict is under its limit, and how it is counted. For the files that decide: answer.cc and ask.cc.
#pragma once

#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "share/ways.h"
#include "tally/lane.h"

namespace dthrottle {

// A query that is refused counts as shadowed and is served in shadow mode.
inline Verdict Refuse(const Limit& limit, Verdict refusal, RuleCounters& counters) {
  if (limit.mode == Mode::kShadow) {
    counters.shadowed.Add();
    return Verdict::kServe;
  }
  (refusal == Verdict::kShed ? counters.shed : counters.throttled).Add();
  return refusal;
}

// Keeps a refusal in the sample. REQUIRES: one is due; the caller has the tag's shard.
inline void NoteRefusal(const LimiterCore& core, Lane& lane, std::string_view front_end, const Query& query,
                        Verdict verdict, Instant now) {
  const auto& rules = core.rules->rules();
  const auto limit = LimitOf(*core.rules, query);
  const std::size_t rule = limit.has_value() ? core.rules->limit(*limit).rule : rules.size();
  lane.refusals().Add(query.tag, rule < rules.size() ? std::string_view(rules[rule].name) : "-", front_end,
                      verdict == Verdict::kShed, now);
}

// How long a tag is refused whatever its bucket holds; zero: it is not. REQUIRES: the caller has the tag's shard.
inline Duration PenaltyLeft(const LimiterCore& core, const Limit& limit, std::uint64_t hash, Instant now) {
  return limit.penalizes ? core.penalties.Left(hash, now) : Duration::zero();
}

// How many places of the tag may be taken here, and whether all are. REQUIRES: the limit has some; as above.
inline std::uint32_t PlacesHere(Ways& ways, const Tag& tag, std::uint64_t hash, const Limit& limit, Instant now) {
  return ways.With(limit, [&](auto& way) { return way.PlacesHere(tag, hash, limit, now); });
}
inline bool IsBusy(Ways& ways, const Tag& tag, std::uint64_t hash, const Limit& limit, Instant now,
                   std::uint32_t wanted = 1) {
  return !ways.core().in_flight->Has(hash, PlacesHere(ways, tag, hash, limit, now), wanted);
}

inline Verdict RefuseBusy(Ways& ways, const Query& query, std::uint64_t hash, const Limit& limit, RuleCounters& counters,
                          Instant now) {
  ways.core().in_flight->CountBusy();
  ways.With(limit, [&](auto& way) { return way.PlaceWanted(query.tag, hash, now), true; });
  return Refuse(limit, Verdict::kThrottle, counters);
}

inline Verdict RefusePenalized(const Limit& limit, RuleCounters& counters) {
  counters.penalized.Add();
  return Refuse(limit, Verdict::kThrottle, counters);
}

// Whether the tag's quota has less left than the query costs. REQUIRES: it has one; the caller has the tag's shard.
inline bool IsSpent(const Ways& ways, const Query& query, std::uint64_t hash, const Limit& limit, Instant now) {
  return query.cost > ways.quotas()->Look(hash, limit, now).left();
}

inline Verdict RefuseSpent(const Limit& limit, RuleCounters& counters) {
  counters.over_quota.Add();
  return Refuse(limit, Verdict::kThrottle, counters);
}

// Makes a standing that of the quota, if that has less left. As a bucket it is one that the length of the period would
// fill; rounded so that its whole tokens are what is left.
inline void ShowQuota(const QuotaStanding& quota, Standing& standing, Instant now) {
  if (standing.limited() &&
      quota.left() >= static_cast<std::uint64_t>(standing.bucket.WholeTokens(standing.shape, now))) {
    return;
  }
  const auto amount = static_cast<Ticks>(quota.amount), left = static_cast<Ticks>(quota.left());
  const Ticks interval = std::max<Ticks>(ToTicks(quota.length) / amount, kTicksPerNanosecond);
  standing.shape = {interval, interval * amount};
  standing.bucket = Bucket();
  standing.bucket.Merge(standing.shape, now + ToDuration((amount - left) * interval), 0, 0, now);
  standing.renewed = std::max(quota.ends - now, Duration(1));
}

inline Verdict Serve(RuleCounters& counters) {
  counters.served.Add();
  return Verdict::kServe;
}

// Decides by the limit's way of sharing. kWithQuota: the tag has one, with enough left, which pays too.
template <bool kWithQuota = false>
[[gnu::always_inline]] inline Verdict DecideUnderLimit(Ways& ways, Asked& asked, RuleCounters& counters,
                                                       Standing* standing) {
  const bool within = ways.Decide(asked);
  const Bucket& bucket = asked.bucket();
  if (standing != nullptr) *standing = {asked.shape, bucket, asked.index, within};
  if (!within) {
    if (asked.limit.penalizes) [[unlikely]] {
      LimiterCore& core = ways.core();
      const std::size_t hosts = asked.limit.shared || asked.limit.divided ? core.peers + 1 : 1;
      core.penalties.Refused(asked.query.tag, asked.hash, core.rules->penalty(asked.limit), hosts, asked.now);
      if (standing != nullptr) standing->penalty = core.penalties.Left(asked.hash, asked.now);
    }
    return Refuse(asked.limit, Verdict::kThrottle, counters);
  }
  bool near = bucket.IsNearLimit(asked.shape, asked.now);
  if constexpr (kWithQuota) {
    const QuotaStanding quota =
        ways.quotas()->Take(asked.query.tag, asked.hash, asked.limit, asked.query.cost, asked.now);
    near = near || quota.left() < quota.amount / 5;
  }
  if (near) counters.near_limit.Add();
  return Serve(counters);
}

}    // namespace dthrottle
