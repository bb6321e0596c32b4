#include "share/capacity/dividing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace dthrottle {

namespace {

constexpr std::size_t kTagsPerSlice = 256;
constexpr Duration kRetryParts = std::chrono::milliseconds(5);

// How long demand is remembered. Shorter is more noise, longer a later answer to a change.
constexpr int kMemoryRounds = 2;

// Demand is told when it has changed by more than this part of the capacity.
constexpr double kTold = 1e-3;

PartTable::Lent ToLent(const CapacityStanding& standing) {
  return {PartOfWhole(standing.other), PartOfWhole(standing.reserve), standing.valid_until};
}

}    // namespace

BootInstant DividingRings::Turn(CapacityExchange* exchange, BootInstant now) {
  Measured(exchange);
  if (exchange == nullptr) return BootInstant::max();
  const BootInstant next = exchange->Tick(now);
  Tell(*exchange);
  return next;
}

void DividingRings::Drain(CapacityExchange& exchange) {
  Measured(&exchange);
  Tell(exchange);
}

void DividingRings::Measured(CapacityExchange* exchange) {
  for (ToCapacity demands; to_capacity.TryPop(demands);) {
    if (exchange != nullptr) exchange->SetDemand(demands);
  }
}

void DividingRings::Tell(CapacityExchange& exchange) {
  if (from_capacity.full()) return;    // the limiter is behind; it gets all of it later
  FromCapacity item;
  const CapacityStanding standing = exchange.standing();
  if (!(standing == told)) item.standing = told = standing;
  while (exchange.TakeShares(item.shares)) continue;
  if (item.standing || !item.shares.empty()) from_capacity.TryPush(std::move(item));
}

Dividing::Dividing(Division& division, ToCapacityRing& to_capacity, FromCapacityRing& from_capacity,
                   std::size_t tags_max, Duration interval, Instant now)
    : division_(division),
      to_capacity_(to_capacity),
      from_capacity_(from_capacity),
      tags_max_(tags_max),
      interval_(interval),
      alpha_(DemandEstimate::Alpha(interval, kMemoryRounds * interval)),
      next_(now + interval),
      rules_(division.rules().fingerprint()),
      now_(now) {
  division_.ChangeParts([&](PartTable& parts) { parts.Reset(tags_max, division_.core().table->keys().tag_hash); });
}

Dividing::Kept Dividing::Keep() {
  Kept kept{standing_, rules_, pins_, participants_, {}};
  division_.ChangeParts([&](PartTable& parts) {
    for (const auto& [key, participant] : participants_) {
      const PartTable::Entry* const entry = parts.Find(key);
      if (entry != nullptr && entry->part != PartTable::kUsual) kept.parts[key] = entry->part;
    }
  });
  return kept;
}

void Dividing::Kept::PutInForce(Division& division, std::size_t tags_max) const {
  division.ChangeParts([&](PartTable& table) {
    table.Reset(tags_max, division.core().table->keys().tag_hash);
    table.Lend(ToLent(standing));
    for (const auto& [key, participant] : participants) {
      PartTable::Entry* const entry = table.Add(key);
      if (entry == nullptr) continue;
      entry->named = participant.capacity > 0;
      if (const auto part = parts.find(key); part != parts.end()) entry->part = std::clamp(part->second, 0.0, 1.0);
    }
  });
}

void Dividing::Resume(Kept kept, Instant now) {
  kept.PutInForce(division_, tags_max_);
  standing_ = kept.standing;
  serial_ = standing_.serial;
  rules_ = kept.rules;
  pins_ = kept.pins;
  participants_ = std::move(kept.participants);
  while (participants_.size() > tags_max_) participants_.erase(std::prev(participants_.end()));
  for (auto& [key, p] : participants_) {
    p.demand.SetAlpha(alpha_);
    p.arrivals = 0;
    p.counted_at = now;
    if (p.pinned > 0 && division_.place_parts() != nullptr) {
      const Tag tag{p.tag, p.is_digest};
      const Table::Shard locked(*division_.core().table, division_.core().table->Hash(tag));
      division_.PlaceWanted(tag, division_.core().table->Hash(tag), now);
    }
  }
}

bool Dividing::Work(Instant now) {
  now_ = now;
  if (division_.rules().fingerprint() != rules_) FollowRules();
  const bool more = Apply();
  if (now >= places_at_) LeasePlaces(now);
  if (!measuring_ && now >= next_) {
    TakeNotes(now);
    measuring_ = true;
    measured_ = {};
  }
  return (measuring_ && Measure(now)) || more;
}

Instant Dividing::next() const {
  const PlaceParts* const places = division_.place_parts();
  return places != nullptr && places->any() ? std::min(next_, places_at_) : next_;
}

// ---- Parts ----

bool Dividing::Apply() {
  if (applied_ == incoming_.shares.size()) {
    applied_ = 0;
    incoming_ = FromCapacity();
    if (!from_capacity_.TryPop(incoming_)) return false;
    if (incoming_.standing) Adopt(*incoming_.standing);
  }
  const std::size_t end = std::min(applied_ + kTagsPerSlice, incoming_.shares.size());
  std::vector<TagShare> nameless;    // nobody has asked for them here
  for (; applied_ < end; ++applied_) {
    const TagShare& share = incoming_.shares[applied_];
    const Participant* const p = Join(share.key, now_);
    Hear(share);
    if (p == nullptr || p->capacity == 0) {
      nameless.push_back(share);
    } else {
      division_.SetPart({p->tag, p->is_digest}, share.key, PartOfWhole(share.parts), now_);
    }
  }
  if (!nameless.empty()) {    // or queries would wait for nothing
    division_.ChangeParts([&](PartTable& parts) {
      for (const TagShare& share : nameless) {
        if (PartTable::Entry* const entry = parts.Find(share.key)) entry->part = PartOfWhole(share.parts);
      }
    });
  }
  return applied_ < incoming_.shares.size() || !from_capacity_.empty();
}

// A new serial begins anew: nobody has a share, and who asks for nothing takes part no more.
void Dividing::Adopt(const CapacityStanding& standing) {
  const bool anew = std::exchange(serial_, standing.serial) != standing.serial;
  standing_ = standing;
  division_.ChangeParts([&](PartTable& parts) { parts.Lend(ToLent(standing)); });
  if (!anew) return;
  for (const auto& [key, p] : participants_) {
    if (p.capacity > 0) division_.SetPart({p.tag, p.is_digest}, key, PartTable::kUsual, now_);
  }
  division_.ChangeParts([&](PartTable& parts) {
    parts.ForgetParts();
    std::erase_if(participants_, [&](const auto& one) {
      if (one.second.told > 0) return false;
      parts.Remove(one.first);
      return true;
    });
  });
  for (auto& [key, p] : participants_) {
    p.told = std::numeric_limits<double>::infinity();    // it is told again
    p.confirmed = 0;
    p.share = kWhole;
  }
}

// Null if there is no room: the tag keeps the usual part.
Dividing::Participant* Dividing::Join(const CapacityKey& key, Instant now) {
  const auto known = participants_.find(key);
  if (known != participants_.end()) return &known->second;
  if (participants_.size() >= tags_max_) {
    ++crowded_;
    return nullptr;
  }
  division_.ChangeParts([&](PartTable& parts) { parts.Add(key); });
  Participant participant{.tag = {},
                          .rule = {},
                          .demand = DemandEstimate(alpha_),
                          .counted_at = now,
                          .pin = ++pins_};    // no number twice, or an old confirmation might fit
  participant.pin_told = participant.pin;
  return &participants_.emplace(key, std::move(participant)).first->second;
}

void Dividing::TakeNotes(Instant now) {
  const Rulebook& rules = division_.rules();
  NotedTag noted;
  for (std::size_t i = 0; i < tags_max_ && division_.TakeNoted(noted); ++i) {
    const Limit& limit = rules.limit(noted.limit);
    const Tag tag = noted.kept.tag();
    const CapacityKey key = division_.KeyOf(tag, limit);
    Participant* const p = Join(key, now);
    if (p == nullptr) continue;
    p->tag = tag.bytes;
    p->is_digest = tag.is_digest;
    p->rule = rules.rules()[limit.rule].name;
    p->capacity = rules.rate(noted.limit);
    division_.ChangeParts([&](PartTable& parts) {
      if (PartTable::Entry* const entry = parts.Find(key)) entry->named = true;
    });
  }
}

// Other rules: rates may be others, and who is under no divided limit any more is asked for nothing. The key stays with
// the rule's name.
void Dividing::FollowRules() {
  const Rulebook& rules = division_.rules();
  rules_ = rules.fingerprint();
  for (auto& [key, p] : participants_) {
    if (p.capacity == 0) continue;
    const auto limit = p.is_digest ? rules.Named(p.rule) : rules.Find(p.tag);
    if (limit && rules.limit(*limit).divided && rules.rules()[rules.limit(*limit).rule].name == p.rule) {
      p.capacity = rules.rate(*limit);
    }
  }
}

// ---- Leases ----

std::optional<LeasePart> Dividing::Lease(std::string_view tag, const LeaseUse& use, Instant now) {
  const auto found = division_.rules().Find(tag);
  if (!found || division_.rules().limit(*found).in_flight != 0) return std::nullopt;
  return LeaseUnder(*found, tag, use, now);
}

std::optional<LeasePart> Dividing::LeaseUnder(LimitIndex index, std::string_view tag, const LeaseUse& use,
                                              Instant now) {
  const Rulebook& rules = division_.rules();
  const Limit& limit = rules.limit(index);
  if (!limit.divided) return std::nullopt;
  const bool lent = division_.BootTime(now) < standing_.valid_until;
  const LeasePart reserve{PartOfWhole(standing_.reserve), PartOfWhole(standing_.reserve), BootInstant::max()};
  Participant* const p = Join(division_.KeyOf({tag}, limit), now);
  if (p == nullptr) return reserve;
  p->tag = tag;
  p->rule = rules.rules()[limit.rule].name;
  p->capacity = rules.rate(index);
  p->lease_wants = use.wants + use.urges;
  p->pinned_until = standing_.valid_until;
  // Lends as much as is wanted, but no more than the share: neighbours wait for the rest. What is out stays pinned.
  const auto parts = [](double part) {
    return static_cast<Parts>(std::ceil(std::clamp(part, 0.0, 1.0) * static_cast<double>(kWhole)));
  };
  const Parts pinned = std::max(std::min(parts(use.wants), p->share), parts(use.has));
  if (pinned != p->pinned) {
    p->pinned = pinned;
    p->pin = ++pins_;
    p->confirmed = std::min(p->confirmed, pinned);
  }
  if (!lent) return reserve;
  const double part = PartOfWhole(std::max(p->confirmed, standing_.reserve));
  return LeasePart{part, std::min(part, PartOfWhole(p->share)), standing_.valid_until};
}

// Places are leased out of parts as capacity is, every so often.
void Dividing::LeasePlaces(Instant now) {
  places_at_ = now + kPlacesEvery;
  PlaceParts* const places = division_.place_parts();
  if (places == nullptr || !places->any()) return;
  LimiterCore& core = division_.core();
  for (const PlaceParts::Use& use : places->Uses(core.ShardLock(), *core.in_flight, division_.BootTime(now))) {
    const Tag tag = use.tag.tag();
    const auto index = tag.is_digest ? std::nullopt : core.rules->Find(tag.bytes);
    if (index && core.limit(*index).divided && core.limit(*index).in_flight != 0) LeasePlaces(use, *index, now);
  }
}

// Leases this host its places, and takes back those beyond: the lease before is about to end, or hosts have divided
// anew and this one has not got as many again in time.
void Dividing::LeasePlaces(const PlaceParts::Use& use, LimitIndex index, Instant now) {
  PlaceParts& places = *division_.place_parts();
  LimiterCore& core = division_.core();
  const Limit& limit = core.limit(index);
  const PlaceUnits units(standing_, division_.ReservePlaces(limit), limit.in_flight);
  const BootInstant boot_time = division_.BootTime(now);
  const bool rests = boot_time < standing_.rests_until;
  // While it rests a host asks for what it keeps, so that everybody can have it.
  const std::uint32_t wants = std::min(rests ? use.has : use.wants, limit.in_flight);
  double urges = 0;
  if (!rests) {
    const Table::Shard locked(*core.table, use.hash);
    const bool has_none = use.has == 0 && places.Here(use.hash, units.reserve(), boot_time) == 0;
    urges = places.Urges(use.hash, has_none, interval_, boot_time) / limit.in_flight;
  }
  const auto part = LeaseUnder(index, use.tag.tag().bytes, {units.PartOf(wants), units.PartOf(use.has), urges}, now);
  const auto early = [](BootInstant until) {
    return std::max(until, BootInstant::min() + PlaceParts::kAhead) - PlaceParts::kAhead;
  };
  // Before the first round nothing is valid: BootInstant::min().
  const BootInstant until = early(std::min(part->until, standing_.valid_until));
  const PlaceParts::Lent lent{units.Of(part->share), units.Of(part->part), until};
  std::uint32_t over = 0;
  {
    const Table::Shard locked(*core.table, use.hash);
    if (rests) {
      places.Rest(use.hash, units, lent, early(standing_.kept_until), boot_time);
    } else if (standing_.valid_until != BootInstant::min()) {    // or it holds still for another generation
      places.Lend(use.hash, units, lent, interval_, boot_time);
    }
    const std::uint32_t may = places.May(use.hash, units.reserve(), boot_time);
    over = std::max(core.in_flight->taken(use.hash), may) - may;
  }
  if (over > 0) division_.Over(use.tag.tag(), use.hash, over);
}

// An answer to an older pin says nothing of what may be given away since.
void Dividing::Hear(const TagShare& share) {
  const auto found = participants_.find(share.key);
  if (found == participants_.end()) return;
  Participant& p = found->second;
  p.share =
      share.blocked == 0 ? kWhole : std::max(share.parts - std::min(share.blocked, share.parts), standing_.reserve);
  if (share.pin == p.pin) p.confirmed = std::min(share.parts, p.pinned);
}

// ---- Demand ----

// What the exchange is told of a tag: what is asked for or, in units in which the capacity is one, what was reported.
double Dividing::Asked(const Participant& tag, Instant now) const {
  if (by_reports_) {
    constexpr double kFadedMost = 30;    // further off than what any two applications report
    const double faded = Seconds(now - tag.reported_at - kReportLasts) / Seconds(kReportFades);
    return tag.reported * tag.capacity * std::exp(-std::clamp(faded, 0.0, kFadedMost));
  }
  const double asked = tag.demand.value() + tag.lease_wants * tag.capacity;
  return asked < kTold * tag.capacity ? 0 : asked;
}

bool Dividing::Indicate(const Tag& tag, double value, Instant now) {
  const Rulebook& rules = division_.rules();
  const auto found = rules.Find(tag.bytes);
  if (!found || tag.is_digest || !rules.limit(*found).divided) return false;
  const Limit& limit = rules.limit(*found);
  Participant* const p = Join(division_.KeyOf(tag, limit), now);
  if (p == nullptr) return false;
  p->tag = tag.bytes;
  p->rule = rules.rules()[limit.rule].name;
  p->capacity = rules.rate(*found);
  p->reported = value;
  p->reported_at = now;
  return true;
}

// The demand on a tag that came since the last round is told with the next one, from a whole interval.
bool Dividing::Measure(Instant now) {
  auto p = participants_.upper_bound(measured_);
  const auto first = p;
  std::size_t n = 0;
  division_.ChangeParts([&](PartTable& parts) {
    for (; p != participants_.end() && n < kTagsPerSlice; ++p, ++n) {
      auto& [key, tag] = *p;
      const PartTable::Entry* const entry = parts.Find(key);
      if (entry == nullptr || now - tag.counted_at < interval_ / 2) continue;
      tag.demand.Observe(static_cast<double>(entry->arrivals - tag.arrivals) / Seconds(now - tag.counted_at));
      tag.arrivals = entry->arrivals;
      tag.counted_at = now;
    }
  });
  const BootInstant boot_time = division_.BootTime(now);
  for (auto i = first; i != p; ++i) {
    auto& [key, tag] = *i;
    measured_ = key;
    if (tag.pinned > 0 && boot_time >= tag.pinned_until) {    // nobody leases it any more
      tag.pinned = 0;
      tag.lease_wants = 0;
      tag.pin = ++pins_;
    }
    const double demand = Asked(tag, now);
    const double change = std::abs(demand - tag.told);
    const bool same = change <= kTold * (by_reports_ ? demand : tag.capacity) && tag.pin == tag.pin_told;
    if (tag.capacity == 0 || same) continue;
    tag.told = demand;
    tag.pin_told = tag.pin;
    outgoing_.push_back({key, tag.capacity, demand, tag.pinned, tag.pin});
  }
  const bool more = p != participants_.end();
  if (!outgoing_.empty() && !to_capacity_.TryPush(std::move(outgoing_))) {
    next_ = now + kRetryParts;    // the other half is far behind; nothing is lost
    return false;
  }
  outgoing_.clear();
  if (more) return true;
  measuring_ = false;
  next_ += interval_ * ((now - next_) / interval_ + 1);
  return false;
}

}    // namespace dthrottle
