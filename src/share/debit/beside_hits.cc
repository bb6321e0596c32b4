#include "share/debit/beside_hits.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "share/debit/ownership.h"
#include "share/said_tag.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

// How long what a peer says of places counts: so long its reports may be lost.
Duration PlacesBelief(Duration period) {
  return std::max<Duration>(kReachPeriods * period, std::chrono::seconds(1));
}

}    // namespace

// ---- Telling ----

void BesideHits::WatchTags(const std::function<void()>& wake) {
  wake_ = wake;
  core_.penalties.SetWake(wake);
  Adopted();
}

void BesideHits::Adopted() {
  if (core_.gauges != nullptr) core_.gauges->SetWake(wake_);
}

Instant BesideHits::urgent_at() const {
  if (core_.penalties.any_untold() || members_untold_) return Instant::min();
  const Instant places = core_.gauges != nullptr && core_.gauges->any_untold() ? places_at_ : Instant::max();
  return core_.penalties.strikes().any_urgent() ? std::min(places, refusals_at_) : places;
}

bool BesideHits::ReportUrgent(Instant now, Draft& out) {
  return TellPenalties(now, out) || TellRefusals(now, out) || TellPlaces(now, out) || TellMembers(now, out);
}

bool BesideHits::TellPenalties(Instant now, Draft& out) {
  return core_.penalties.TellSome(
      core_.ShardLock(), now, [&](const Tag& tag, Duration left, Table::Shard& shard) {
        return Add(tag, {.penalty = PenaltyMilliseconds(left)}, shard, now, out);
      });
}

// A flood of tags that are refused costs peers no more than so much, however many hosts there are.
bool BesideHits::TellRefusals(Instant now, Draft& out) {
  constexpr std::size_t kMost = 800, kLeast = 4;    // by all hosts, and by each, every kEvery
  Strikes& strikes = core_.penalties.strikes();
  if (now < refusals_at_ || !strikes.any_urgent()) return false;
  refusals_at_ = now + kEvery;
  const std::size_t most = std::max(kMost / (core_.peers + 1), kLeast);
  return !strikes.TellSome(core_.ShardLock(), most, now,
                           [&](const Tag& tag, std::uint32_t refusals, Table::Shard& shard) {
                             return Add(tag, {.refusals = refusals}, shard, now, out);
                           });
}

bool BesideHits::TellPlaces(Instant now, Draft& out) {
  if (core_.gauges == nullptr || now < places_at_) return false;
  places_at_ = now + kEvery;
  return core_.gauges->TellSome(
      core_.ShardLock(),
      [&](const Tag& tag, std::uint64_t hash, Table::Shard& shard) -> std::optional<std::uint32_t> {
        const std::uint32_t taken = core_.in_flight->taken(hash);
        const bool added = Add(tag, {.places = taken}, shard, now, out);
        return added ? std::optional(taken) : std::nullopt;
      });
}

bool BesideHits::TellMembers(Instant now, Draft& out) {
  if (!members_untold_) return false;
  members_untold_ = core_.among->TellSome(
      core_.ShardLock(), now, [&](const Tag& tag, const MemberWord& word, Table::Shard& shard) {
        return OwnsHere(core_, tag) || Add(tag, {.member = word}, shard, now, out);
      });
  return members_untold_;
}

void BesideHits::PeriodEnds() {
  members_untold_ = core_.among != nullptr && SomeOwn(core_);
  core_.penalties.strikes().TellRest(core_.ShardLock());
  TellPlacesAgain();
}

void BesideHits::TellPlacesAgain() {
  if (core_.gauges != nullptr) core_.gauges->TellAgain(core_.ShardLock());
}

bool BesideHits::Add(const Tag& tag, const Besides& said, Table::Shard& shard, Instant now, Draft& out) const {
  const Slot* const slot = shard.Find(tag, now);
  const auto index = slot != nullptr ? std::optional(LimitIndex{slot->limit})
                     : tag.is_digest ? std::nullopt
                                     : core_.rules->Find(tag.bytes);
  if (!index.has_value()) return true;
  if (const Limit& limit = core_.limit(*index); !limit.shared && !limit.divided) return true;
  const std::size_t before = out.entries.size();
  if (!AddSaidTag(*core_.rules, tag, *index, 0, said, out.entries)) return false;
  if (out.entries.size() > before) out.began.push_back(ToTicks(now));
  return true;
}

// ---- Hearing ----

bool BesideHits::Hear(const Entries& entries, const ToldEntry& told, HeardPeer& peer, const Speaker& speaker,
                      Instant to, Instant now) {
  const Entry& entry = told.entry;
  if (const auto left = entries.penalty(entry)) {
    HearPenalty(told, peer, speaker.from_whom(), to + std::chrono::milliseconds(*left), now);
  } else if (const std::uint64_t refusals = entries.refusals(entry); refusals != 0) {
    HearRefusals(told, peer, speaker.from_whom(), refusals, now);
  } else if (const auto places = entries.places(entry)) {
    const std::uint32_t of = speaker.abroad ? Gauges::Site(speaker.number) : speaker.number;
    const Instant until = std::min(to, now) + PlacesBelief(PeriodOf(peer));
    HearPlaces(told, peer, of, *places, until, speaker.place, now);
  } else if (const auto word = entries.quota(entry)) {
    HearQuota(told, peer, *word, speaker, now);
  } else if (const auto member = entries.member(entry)) {
    HearMember(told, *member, speaker, now);
  } else {
    return false;
  }
  return true;
}

// A word that ends a penalty counts too.
bool BesideHits::MayPenalize(const ToldEntry& told, HeardPeer& peer, Instant now) {
  if (peer.penalties.Take(now)) return told.slot != nullptr || peers_.MayName(peer, now);
  ++peers_.counts().penalties_cut, ++peer.counts.penalties_cut;
  return false;
}

void BesideHits::HearPenalty(const ToldEntry& told, HeardPeer& peer, std::uint32_t from_whom, Instant until,
                             Instant now) {
  if (!MayPenalize(told, peer, now)) return;
  const bool owned = OwnsHere(core_, told.tag);
  const Duration known = owned ? core_.penalties.Left(told.hash, now) : Duration::zero();
  core_.penalties.Hear(told.tag, told.hash, from_whom, core_.rules->penalty(core_.limit(told.index)), until, now);
  if (owned) core_.penalties.PassOn(told.hash, known, now);
}

// Only the owner of a tag begins a penalty by what it hears: another host may refuse the tag itself, once more. Where a
// peer's refusals are most of a penalty, they are bounded as its penalties are.
void BesideHits::HearRefusals(const ToldEntry& told, HeardPeer& peer, std::uint32_t from_whom, std::uint64_t refusals,
                              Instant now) {
  const bool known = told.slot != nullptr || core_.penalties.strikes().Counts(told.hash);
  if (!known && !peers_.MayName(peer, now)) return;
  const Penalty& terms = core_.rules->penalty(core_.limit(told.index));
  std::optional<bool> may;
  const auto may_penalize = [&] {
    if (!may.has_value()) may = MayPenalize(told, peer, now);
    return *may;
  };
  if (!core_.penalties.HearRefusals(told.hash, from_whom, refusals, terms, now, may_penalize)) return;
  if (!OwnsHere(core_, told.tag) || !may_penalize()) return;
  core_.penalties.BeginHeard(told.tag, told.hash, from_whom, terms, now);
}

// It says again in each of its own periods what still holds.
Duration BesideHits::PeriodOf(const HeardPeer& peer) const {
  return std::max(peer.period, ToDuration(core_.window));
}

// All places of a tag are taken at most.
void BesideHits::HearPlaces(const ToldEntry& told, HeardPeer& peer, std::uint32_t of, std::uint64_t places,
                            Instant until, const ReportPlace& in, Instant now) {
  const Limit& limit = core_.limit(told.index);
  if (until <= now) return;
  const bool known = told.slot != nullptr || core_.gauges->Knows(told.hash);
  if (!known && places != 0 && !peers_.MayName(peer, now)) return;
  const auto taken = static_cast<std::uint32_t>(std::min<std::uint64_t>(places, limit.in_flight));
  core_.gauges->Hear(told.tag, told.hash, of, {taken, until, in}, now);
}

void BesideHits::Bar(std::uint32_t peer, Instant now) {
  if (core_.gauges != nullptr) core_.gauges->Forget(core_.ShardLock(), peer, now);
}

// Where other sites are heard they say themselves what came back of what they have counted. Hosts pass their counts on,
// and one of them that says more would take back what a whole site has used.
void BesideHits::HearQuota(const ToldEntry& told, HeardPeer& peer, const QuotaWord& word, const Speaker& speaker,
                           Instant now) {
  Quotas* const quotas = QuotasFor(told, peer, now);
  if (quotas == nullptr) return;
  const bool of_site = word.counter != kAllHosts && word.counter < kHostCounters;
  if (of_site && word.back.has_value() && core_.site_sums != nullptr && !speaker.abroad) return quotas->Disbelieve();
  quotas->Hear(told.tag, told.hash, core_.limit(told.index), word, peer.number, now);
}

// The tag is divided here among its members, of which the peer has told one. While its bucket is full nobody is cut.
void BesideHits::HearMember(const ToldEntry& told, const MemberWord& word, const Speaker& speaker, Instant now) {
  if (told.slot == nullptr || !OwnsHere(core_, told.tag)) return;
  const Limit& limit = core_.limit(told.index);
  const TagAt at{told.tag, told.hash, limit, told.slot};
  const bool due = core_.among->IsDue(told.hash, now);
  const Tokens level = due ? ways_.ForetoldLevel(at, now).value_or(at.Level(now)) : 0;
  const AmongTags::Divided divided{told.tag, told.hash, limit.among, core_.peers + 1, ToDuration(core_.waste_window),
                                   core_.rules->weight_max()};
  core_.among->HearPeer(divided, word, speaker, limit.shape, level, now);
}

// A host that has places is told how many others have, and everybody how many are taken.
bool BesideHits::HearOwner(const Entries& entries, const ToldEntry& told, HeardPeer& peer, bool everybody, Instant to,
                           Instant now) {
  if (const auto word = entries.quota(told.entry)) {
    Quotas* const quotas = QuotasFor(told, peer, now);
    if (quotas != nullptr) quotas->HearOwner(told.tag, told.hash, core_.limit(told.index), *word, peer.number, now);
  } else if (const auto places = entries.places(told.entry)) {
    const Instant until = std::min(to, now) + OwnersHeard::Belief(PeriodOf(peer));
    if (!everybody || !core_.gauges->IsHere(told.hash)) HearPlaces(told, peer, Gauges::kOwner, *places, until, {}, now);
  } else if (const auto member = entries.member(told.entry)) {
    core_.among->HearOwner(told.hash, *member, now);
  } else {
    return false;
  }
  return true;
}

// Where the word counts; null: nowhere.
Quotas* BesideHits::QuotasFor(const ToldEntry& told, HeardPeer& peer, Instant now) {
  Quotas* const quotas = ways_.HasQuota(core_.limit(told.index)) ? ways_.quotas() : nullptr;
  const bool known = told.slot != nullptr || (quotas != nullptr && quotas->Knows(told.hash));
  return known || peers_.MayName(peer, now) ? quotas : nullptr;
}

}    // namespace dthrottle
