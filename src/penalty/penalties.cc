#include "penalty/penalties.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace dthrottle {

namespace {

void Add(std::atomic<std::uint64_t>& count) {
  count.fetch_add(1, std::memory_order_relaxed);
}

Duration LongestUnder(const Penalty& terms) {
  return terms.doubling ? Penalties::kLongest : terms.lasts;
}

void Cut(PenaltyAt& its, const Penalty& terms, Instant now) {
  its.until = std::min(its.until, now + LongestUnder(terms));
  its.length = std::min(its.length, LongestUnder(terms));
}

}    // namespace

void Penalties::Enable() {
  if (table_ != nullptr) return;
  table_ = std::make_unique<Table>(kTags);
  strikes_.Enable();
}

Duration Penalties::Left(std::uint64_t hash, Instant now) const {
  const std::size_t at = table_->Find(hash);
  return at == Table::kNone ? Duration::zero() : std::max(Its(at).until - now, Duration::zero());
}

void Penalties::SetUntold(std::size_t place) {
  if (table_->SetUntold(place) && wake_) wake_();
}

// ---- Refusals ----

void Penalties::Refused(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::size_t hosts, Instant now) {
  if (strikes_.Refused(tag, hash, terms, hosts, now) >= terms.after) Begin(tag, hash, terms, false, now);
}

bool Penalties::HearRefusals(std::uint64_t hash, std::uint32_t peer, std::uint64_t refusals, const Penalty& terms,
                             Instant now, const std::function<bool()>& may) {
  if (Left(hash, now) != Duration::zero()) return false;    // they were on the way when it began
  return strikes_.Heard(hash, peer, refusals, terms, now, may) >= terms.after;
}

void Penalties::BeginHeard(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Penalty& terms, Instant now) {
  if (table_->Find(hash) == Table::kNone && !MakeRoomFor(hash, peer, now)) return Add(crowded_);
  Begin(tag, hash, terms, true, now);
  if (const std::size_t at = table_->Find(hash); at != Table::kNone) (*table_)[at].peer = peer;
}

// A penalty that has ended is remembered for as long again as it lasted, where the next one is twice as long.
void Penalties::Begin(const Tag& tag, std::uint64_t hash, const Penalty& terms, bool heard, Instant now) {
  strikes_.Forget(hash);
  const std::size_t at = PlaceOf(hash, now);
  if (at == Table::kNone) return;
  PenaltyAt& its = (*table_)[at];
  const bool in_a_row = terms.doubling && its.remembered(now);
  const Duration length = in_a_row ? std::min(2 * std::max(its.length, terms.lasts), kLongest) : terms.lasts;
  its = {KeptTag(tag), now + length, length, heard};
  Add(begun_);
  SetUntold(at);
}

// The place of the tag's penalty, or a new one; kNone: there is no room.
std::size_t Penalties::PlaceOf(std::uint64_t hash, Instant now) {
  const std::size_t at = table_->FindOrPut(hash, [&](std::size_t place) {
    const Instant until = Its(place).until;
    return until <= now ? std::optional(until) : std::nullopt;
  });
  if (at == Table::kNone) Add(crowded_);
  return at;
}

// ---- Peers ----

// How many penalties of a set are in force by a peer's word and are such.
template <class Is>
std::size_t Penalties::HeardNear(std::uint64_t hash, Instant now, Is&& is) const {
  return table_->CountNear(hash, [&](const PenaltyAt& its) { return its.heard && its.until > now && is(its); });
}

bool Penalties::HeardFillSet(std::uint64_t hash, Instant now) const {
  return HeardNear(hash, now, [](const PenaltyAt&) { return true; }) >= kHeardMax;
}

// Room for a penalty by the word of that peer: where peers have all of their places, the one of the peer with most of
// them that ends first is forgotten. False: no other peer has more.
bool Penalties::MakeRoomFor(std::uint64_t hash, std::uint32_t peer, Instant now) {
  if (!HeardFillSet(hash, now)) return true;
  const auto of = [&](std::uint32_t one) {
    return HeardNear(hash, now, [&](const PenaltyAt& its) { return its.peer == one; });
  };
  std::size_t most = of(peer) + 1, chosen = Table::kNone;
  for (std::size_t place = table_->FirstNear(hash), way = 0; way < kWays; ++way, ++place) {
    if (table_->HashAt(place) == 0 || !Its(place).heard || Its(place).until <= now) continue;
    const std::size_t theirs = of(Its(place).peer);
    const bool sooner = chosen != Table::kNone && theirs == most && Its(place).until < Its(chosen).until;
    if (theirs > most || sooner) most = theirs, chosen = place;
  }
  if (chosen == Table::kNone) return false;
  table_->Remove(chosen);
  Add(crowded_);
  return true;
}

bool Penalties::Hear(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Penalty& terms, Instant until,
                     Instant now) {
  const std::size_t known = table_->Find(hash);
  if (until <= now) {
    const bool in_force = known != Table::kNone && Its(known).until > now;
    if (!in_force && HeardFillSet(hash, now)) return true;
    const std::size_t at = known != Table::kNone ? known : PlaceOf(hash, now);
    if (at == Table::kNone) return true;
    PenaltyAt& its = (*table_)[at];
    its.tag = KeptTag(tag);
    End(its, in_force ? its.until : now + terms.lasts, now);
    if (in_force) Add(lifted_);
    return true;
  }
  if (known != Table::kNone && (Its(known).until >= until || Its(known).Lifted(until, terms))) return true;
  if (known == Table::kNone && !MakeRoomFor(hash, peer, now)) {
    Add(crowded_);
    return false;
  }
  const std::size_t at = PlaceOf(hash, now);
  if (at == Table::kNone) return false;
  PenaltyAt& its = (*table_)[at];
  const bool was_in_force = its.until > now;
  if (!was_in_force) strikes_.Forget(hash);
  its.until = std::min(until, now + LongestUnder(terms));
  its.length = std::max(its.length, its.until - now);
  its.lifted = its.would_end = Instant::min();
  its.tag = KeptTag(tag);
  its.heard = its.heard || !was_in_force;
  its.peer = peer;
  Add(heard_);
  return true;
}

void Penalties::Restore(PenaltyAt left, std::uint64_t hash, const Penalty& terms, Instant now) {
  Cut(left, terms, now);
  if (!left.remembered(now)) return;
  if (const std::size_t at = PlaceOf(hash, now); at != Table::kNone) (*table_)[at] = left;
}

void Penalties::Shorten(std::uint64_t hash, const Penalty& terms, Instant now) {
  if (const std::size_t at = table_->Find(hash); at != Table::kNone) Cut((*table_)[at], terms, now);
}

void Penalties::Forget(std::uint64_t hash) {
  if (const std::size_t at = table_->Find(hash); at != Table::kNone) table_->Remove(at);
}

void Penalties::PassOn(std::uint64_t hash, Duration known, Instant now) {
  constexpr Duration kSame = std::chrono::milliseconds(10), kAgain = std::chrono::seconds(1);
  const std::size_t at = table_->Find(hash);
  if (at == Table::kNone) return;
  PenaltyAt& its = (*table_)[at];
  const Duration left = std::max(its.until - now, Duration::zero());
  const bool news = left > known + kSame || known > left + kSame;
  if (!news && now < its.passed_at + kAgain) return;
  its.passed_at = now;
  SetUntold(at);
}

bool Penalties::Lift(std::uint64_t hash, Instant now) {
  if (table_ == nullptr) return false;
  strikes_.Forget(hash);
  const std::size_t at = table_->Find(hash);
  if (at == Table::kNone) return false;
  PenaltyAt& its = (*table_)[at];
  if (its.until <= now) {
    its.length = Duration::zero();
    return false;
  }
  End(its, its.until, now);
  Add(lifted_);
  SetUntold(at);
  return true;
}

void Penalties::TellLifted(const Tag& tag, std::uint64_t hash, const Penalty& terms, Instant now) {
  const std::size_t at = PlaceOf(hash, now);
  if (at == Table::kNone) return;
  PenaltyAt& its = (*table_)[at];
  its.tag = KeptTag(tag);
  End(its, now + terms.lasts, now);
  SetUntold(at);
}

// The next one is as long as the first again.
void Penalties::End(PenaltyAt& its, Instant would_end, Instant now) {
  its.until = std::min(its.until, now);
  its.length = Duration::zero();
  its.lifted = now, its.would_end = would_end;
}

PenaltyCounts Penalties::counts() const {
  const auto read = [](const std::atomic<std::uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  return {table_ != nullptr ? table_->used() : 0, read(begun_), read(heard_), read(lifted_), read(crowded_),
          strikes_.heard(), strikes_.untold(), strikes_.crowded()};
}

}    // namespace dthrottle
