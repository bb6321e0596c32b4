// What a query's verdict is under its limit, and how it is counted. For the files that decide: answer.cc and ask.cc.
#pragma once

#include <algorithm>
#include <limits>

#include "limiter/limit_of.h"
#include "limiter/limiter.h"
#include "query/question.h"
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

// How long the quota refuses so many tokens, or a bucket.
inline Duration RefusedFor(const QuotaStanding& quota, std::uint64_t tokens, Instant now) {
  if (tokens <= quota.left()) return Duration::zero();
  return tokens > quota.amount ? Outcome::kNever : std::max(quota.ends - now, Duration(1));
}
inline Duration RefusedFor(const Shape& shape, const Bucket& bucket, std::uint64_t tokens, Instant now) {
  const Cost cost = static_cast<Cost>(std::min<std::uint64_t>(tokens, std::numeric_limits<Cost>::max()));
  return shape.Holds(cost) ? bucket.ServesAt(shape, cost, now) - now : Outcome::kNever;
}

// Whether the quota bounds the tag more than its bucket does: it refuses longer what was refused, or one token more than
// both have. So that is the one with less left, and of two with as much left the one that gains later.
inline bool QuotaBounds(const QuotaStanding& quota, const Standing& standing, Cost refused, Instant now) {
  const auto tokens = static_cast<std::uint64_t>(standing.bucket.WholeTokens(standing.shape, now));
  const std::uint64_t wanted = std::max<std::uint64_t>(refused, std::min(quota.left(), tokens) + 1);
  const Duration by_quota = RefusedFor(quota, wanted, now);
  const Duration by_bucket = RefusedFor(standing.shape, standing.bucket, wanted, now);
  return by_quota != by_bucket ? by_quota > by_bucket : quota.left() < tokens;
}

// Makes a standing that of the quota, if that bounds the tag more; `refused`: the cost of a query that was, or 0. As a
// bucket it is one that the length of the period would fill; rounded so that its whole tokens are what is left.
inline void ShowQuota(const QuotaStanding& quota, Standing& standing, Cost refused, Instant now) {
  if (standing.limited() && !QuotaBounds(quota, standing, refused, now)) return;
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
