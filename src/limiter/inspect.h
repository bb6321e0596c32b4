// Looking inside a limiter, and changing single tags, for people, for metrics and for what is kept over a restart. Where
// nothing is said of threads, the one that owns the limiter calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tag.h"
#include "base/time.h"
#include "hold/in_flight.h"
#include "hold/payment.h"
#include "penalty/penalties.h"
#include "quota/quotas.h"
#include "share/among/among_tags.h"

namespace dthrottle {

class Limiter;
struct Inspection;    // share/inspection.h

// What the limiter knows of the tag.
Inspection Inspect(Limiter& limiter, const Query& query, Instant now);

// The tags that are charged with the tag (Rule::also), in the order of its rule; see DerivedTag. Any thread.
std::vector<std::string> ChargedWith(const Limiter& limiter, const Query& query, Instant now);
// The tags of ChargedWith that have places: a question that enters takes one of each.
std::vector<std::string> PlacesWith(const Limiter& limiter, const Query& query, Instant now);
// Tells one list of charged tags from another, mostly. 0: nothing is charged with it.
std::uint16_t MarkOf(std::span<const std::string> charged);

// What queries that were served just now have paid, if each did. Any thread.
std::vector<Payment> PaymentsOf(const Limiter& limiter, std::span<const Query> queries, Instant now);

// Forgets what the tag has spent or owes, and a penalty of it on all hosts. False if there was nothing.
bool Forgive(Limiter& limiter, const Query& query, Instant now);

// A tag that is refused because of a penalty.
struct PenalizedTag {
  std::string tag;
  bool is_digest = false;
  Duration left{}, length{};    // of the penalty
  bool heard = false;           // a peer said so
};
// The tags that are penalized now, those that stay so longest first.
std::vector<PenalizedTag> Penalized(Limiter& limiter, Instant now);

// What became of limits that are more than a bucket.
struct LimiterCounts {
  AmongCounts among{};
  std::uint64_t own_limits = 0;            // that tags name themselves, now
  std::uint64_t own_limits_crowded = 0;    // times that one found no room, since the rules were put in force
  InFlightCounts in_flight{};
  PenaltyCounts penalties{};
  QuotaCounts quotas{};
};
LimiterCounts CountsOf(const Limiter& limiter);

}    // namespace dthrottle
