#include "share/forecast/forecasting.h"

#include <algorithm>

#include "base/math.h"
#include "share/accuracy/accuracy.h"
#include "share/inspection.h"
#include "share/sites/site_bound.h"
#include "share/ways.h"

namespace dthrottle {

namespace {

constexpr double kWatchDrained = 0.5;
constexpr int kCanWaitPeriods = 2;    // how long hits below the threshold wait
constexpr Duration kOwnerBelieved = std::chrono::seconds(10);    // where nobody asks
// Active watches are looked at in rounds, a part of the places at a time. Parts follow each other so fast that no tag
// is asked for more than this between two of them; a tag that is asked for less lets rounds pass, so that it costs what
// it would cost alone.
constexpr Tokens kBetweenParts = 0.1;
// The same of a tag that is far from its limit, where only the end of the demand at this host is news.
constexpr Tokens kOwnBetweenParts = 2;

// Whether peers should hear at once that a host has served so much of a tag: its bucket would be nearly empty if all
// hosts had; half of U has been served; or half of the burst is gone.
bool Matters(const Pace& pace, Tokens hits, Tokens level) {
  return level <= kWatchDrained * pace.burst || hits >= std::min(pace.Kept(level), kWatchDrained * pace.unheard_max);
}

// An owner tells of a nearly full bucket again when it is less full, and until then there is nothing to foretell.
bool CanRest(const Forecast& forecast, const Pace& pace, Tokens hits) {
  return pace.NearlyFull(forecast.level()) && hits < pace.FarKept(pace.burst) / 2;
}

Tokens UnreportedOf(const TagAt& at) {
  return at.slot != nullptr ? at.slot->unreported.hits() : 0;
}

}    // namespace

Forecasting::Forecasting(LimiterCore& core, Ways& ways) : core_(core), ways_(ways), lanes_(core.tally.lanes()) {}

Debits& Forecasting::debits() const {
  return ways_.Get<Debits>();
}

void Forecasting::WatchTags(std::size_t tags, const std::function<void()>& wake) {
  core_.table->Exclusively([&] {
    watches_ = std::make_unique<Watches>(tags);
    wake_ = wake;
  });
}

void Forecasting::SetHeard(bool heard) {
  if (heard != heard_) core_.table->Exclusively([&] { heard_ = heard; });
}

std::optional<Tokens> Forecasting::Bound(const Limit& limit, std::span<const PeerAge> peers) const {
  return ExcessBound(
             {limit.shape.burst(), limit.shape.rate(), UnheardMaxOf(core_, limit), period(), PeersDemand::kHearing},
             peers) +
         ExcessOfSites(core_, limit);
}

// ---- Queries ----

// Brings a forecast up to `now`, and tells the certificate what was served since the last time.
void Forecasting::Step(Watch& watch, const TagAt& at, Instant now) {
  Certificate& certificate = debits().certificate();
  if (const Tokens served = watch.forecast.TakeServed(); served > 0 && certificate.tags() > 0) {
    const Instant when = watch.forecast.stepped();
    certificate.Served(at.hash, {.hits = served, .first = when, .from = when, .to = when, .here = true}, now);
  }
  const Tokens lent = LentOf(at.hash);
  if (lent > 0) watch.forecast.Awaits(now);
  watch.forecast.Step(at.Uncapped(now) + lent, PaceOf(at.limit), now);
}

// What workers have and are not known to have spent: it is in the bucket, and nowhere else.
Tokens Forecasting::LentOf(std::uint64_t hash) const {
  return core_.loans.any() ? Loans::Out(core_.loans.Of(hash)) : 0;
}

// The bucket wastes no refill unseen: it is about to leave room for what is lent.
void Forecasting::Prepare(Asked& asked) {
  if (core_.window == 0) return;
  Watch* const watch = watches_->Find(asked.hash);
  if (watch != nullptr) Step(*watch, {asked.query.tag, asked.hash, asked.limit, asked.slot}, asked.now);
}

// Peers hear late of what workers spend. Far from the limit of a tag that does no harm, up to as much as this host may
// keep to itself.
Tokens Forecasting::MayLend(const Asked& asked) {
  if (core_.window == 0) return kLendAll;
  Watch* const watch = watches_->Find(asked.hash);
  if (watch == nullptr) return kLendAll;
  const TagAt at{asked.query.tag, asked.hash, asked.limit, asked.slot};
  Renew(*watch, at, asked.now);
  const Tokens kept = PaceOf(asked.limit).FarKept(watch->forecast.level());
  // Where a host owns the tag, hits wait for the end of the period in the same way. With a half of it, 16 hosts hold a
  // limit less exactly where it is asked for at 1.3 times its rate.
  return std::max(kept / (watch->forecast.hears_owner() ? 3 : 1) - UnreportedOf(at), 0.0);
}

// Watches the tag of a slot from now on, if it has come that far.
void Forecasting::WatchNew(const Asked& asked) {
  const Slot& slot = *asked.slot;
  const Tokens level = slot.bucket.Level(asked.limit.shape, asked.now), hits = slot.unreported.hits();
  if (!Matters(PaceOf(asked.limit), hits, level)) return;
  Watch* const watch = watches_->Add(asked.hash, asked.query.tag, level, hits, rests(), asked.now);
  if (watch != nullptr) Note(*watch);
}

// Watches a tag that a peer tells of, if the peer asks for it all the time; or if the peer was asked so often that it
// told at once, and this host has hits to add.
Watch* Forecasting::WatchHeard(const PeerWord& word, const TagAt& at, Instant now) {
  const Tokens hits = UnreportedOf(at);
  if (!heard_ || (word.demand <= 0 && hits == 0)) return nullptr;
  const Tokens level = at.Level(now);
  const bool adds = word.demand <= 0;
  if (adds && !Matters(PaceOf(at.limit), word.hits, level)) return nullptr;
  if (hits == 0) return watches_->AddHeard(at.hash, at.tag, word.from_whom(), level, rests(), now);
  Watch* const watch = watches_->Add(at.hash, at.tag, level, hits, rests(), now);
  if (watch != nullptr && adds) Note(*watch);
  return watch;
}

void Forecasting::NoteNow(Watch& watch) {
  watch.noted = true;
  watches_->Note(&watch);
  if (!noted_.exchange(true, std::memory_order_relaxed) && wake_) wake_();
}

// An active watch is looked at in turns, because demand may also cease.
void Forecasting::LookAgain(const Watch& watch, Instant now) {
  const Forecast& forecast = watch.forecast;
  if (!forecast.Active()) return;
  watches_->SetActive(&watch, true);
  const double part = forecast.far() ? kOwnBetweenParts / forecast.demand()
                                     : kBetweenParts / (forecast.demand() + forecast.peers_demand());    // s
  const Duration every = DurationOf(std::clamp(part, Seconds(kUrgentEvery), Seconds(Rounds::kEveryMax)));
  // Each part may come earlier by kUrgentEvery.
  const Duration least = (Rounds::kParts - 1) * (every - kUrgentEvery);
  watches_->SetTurn(watch.place, {std::min(watches_->turn(watch.place).from, now + least), every});
  rounds_.Hasten(every, now);
}

// Peers hear of it with the next report, which may be due now because less was served than they foretell.
void Forecasting::CameBack(Asked& asked, Cost tokens) {
  Watch* const watch = core_.window != 0 ? watches_->Find(asked.hash) : nullptr;
  if (watch == nullptr) return;
  watch->forecast.CameBack(tokens, PaceOf(asked.limit));
  if (watch->forecast.Due()) Note(*watch);
}

// ---- What peers say ----

Heed Forecasting::Hear(const PeerWord& word, const TagAt& at, Instant now) {
  Heed unheeded = Heed::AsStated(word);
  unheeded.refused = 0;
  unheeded.told_at_once = true;
  Watch* watch = watches_->Find(at.hash);
  // A watch that rests ends, so its tag costs no more than one that was never watched.
  if (watch != nullptr && word.demand <= 0 && UnreportedOf(at) == 0 && watch->forecast.Idle(rests(), now)) {
    watches_->Remove(watch);
    watch = nullptr;
  }
  if (watch == nullptr) watch = WatchHeard(word, at, now);
  if (watch == nullptr) return unheeded;
  Forecast& forecast = watch->forecast;
  const Pace pace = PaceOf(at.limit);
  Step(*watch, at, now);
  // Nobody asks here any more, so the watch is one of the peer.
  const bool asked_here = forecast.demand() > 0 || UnreportedOf(at) > 0;
  if (watch->here && !asked_here) watch->here = false, watch->peer = word.from_whom();
  Heed heed = forecast.Heard(word, pace, now);
  heed.told_at_once = true;
  heed.refused = heed.refused.value_or(0);
  if (!heed.believed) ++debits().peers().counts().disbelieved;
  LookAgain(*watch, now);
  // The bucket has not heard of what is foretold.
  if (forecast.level() < pace.burst / 5) {
    debits().certificate().Drained(at.hash, at.tag, TagLookOf(core_, at.limit, forecast.level()), {}, 0, now);
  }
  return heed;
}

void Forecasting::PeerGaveBack(const TagAt& at, Cost tokens, Instant now) {
  Watch* const watch = watches_->Find(at.hash);
  if (watch == nullptr) return;
  Step(*watch, at, now);
  watch->forecast.PeerGaveBack(tokens, PaceOf(at.limit));
}

std::optional<Foretold> Forecasting::ForetoldOf(const TagAt& at, std::uint32_t peer, Instant now) {
  Watch* const watch = watches_->Find(at.hash);
  if (watch == nullptr) return std::nullopt;
  Step(*watch, at, now);
  const Forecast& forecast = watch->forecast;
  return Foretold{forecast.level(), forecast.demand() + forecast.peers_demand(), forecast.WordFor(peer),
                  forecast.demand_here(), forecast.earned()};
}

std::optional<Instant> Forecasting::ReportedAt(std::uint64_t hash) {
  const Watch* const watch = watches_ != nullptr ? watches_->Find(hash) : nullptr;
  return watch != nullptr ? std::optional(watch->forecast.reported_at()) : std::nullopt;
}

std::optional<Tokens> Forecasting::LevelByOwner(std::uint64_t hash) const {
  const Watch* const watch = watches_ != nullptr ? watches_->Find(hash) : nullptr;
  return watch != nullptr && watch->forecast.hears_owner() ? std::optional(watch->forecast.level()) : std::nullopt;
}

void Forecasting::OwnerSaid(const OwnersWord& word, const TagAt& at, Instant now) {
  if (watches_ == nullptr || !at.limit.forecast) return;
  Watch* watch = watches_->Find(at.hash);
  if (watch == nullptr) {
    if (word.demand <= 0 || !heard_ || PaceOf(at.limit).NearlyFull(word.level)) return;
    watch = watches_->Add(at.hash, at.tag, at.Level(now), UnreportedOf(at), rests(), now);
    if (watch == nullptr) return;
  }
  Step(*watch, at, now);
  watch->forecast.OwnerSaid(at.Level(now) + LentOf(at.hash), UnreportedOf(at), word, PaceOf(at.limit), now);
  LookAgain(*watch, now);
}

void Forecasting::OwnedHere(const TagAt& at, Instant now) {
  Watch* const watch = watches_ != nullptr ? watches_->Find(at.hash) : nullptr;
  if (watch == nullptr || !at.limit.forecast) return;
  Step(*watch, at, now);
  watch->forecast.OwnedHere(at.Level(now) + LentOf(at.hash), PaceOf(at.limit));
  LookAgain(*watch, now);
}

// ---- Reports ----

bool Forecasting::CanWait(const Tag& tag, Instant now) {
  const Watch* watch = watches_->Find(core_.table->Hash(tag));
  return watch != nullptr && !watch->forecast.far() && now - watch->forecast.reported_at() < kCanWaitPeriods * period();
}

std::optional<bool> Forecasting::Report(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to,
                                        Draft& out) {
  Watch* const watch = watches_->Find(core_.table->Hash(tag));
  if (watch == nullptr) return std::nullopt;
  const Forecast& forecast = watch->forecast;
  if (forecast.hears_owner() && CanRest(forecast, PaceOf(core_.limit(slot.limit)), slot.unreported.hits())) {
    watches_->Remove(watch);
    return std::nullopt;
  }
  return ReportHits(*watch, slot.limit, slot.unreported, &waste, from, to, out);
}

// Hits of a tag that is watched wait for longer than a report's interval, so they carry their own beginning: their
// first hit, or that of the burst that followed a rest. False, and nothing has changed, if there is no room.
bool Forecasting::ReportHits(Watch& watch, LimitIndex index, Unreported hits, const Waste* waste, Instant from,
                             Instant to, Draft& out) {
  const Limit& limit = core_.limit(index);
  Ticks began = ToTicks(watch.forecast.began().value_or(from));
  if (waste != nullptr) began = std::max(began, waste->Since(ToTicks(to)));
  const Pace pace = PaceOf(limit);
  Debits::Said said{hits.hits(), {}, hits.back()};
  said.demand = Thousandths(watch.forecast.announces(pace), kDemandMax);
  if (!debits().AddSaid(watch.kept.tag(), index, said, began, out)) return false;
  watch.forecast.Report(pace, to);
  LookAgain(watch, to);
  return true;
}

// Reports the hits of one watch if that is urgent. False if there is no room.
bool Forecasting::LookAt(std::size_t place, Instant from, Instant now, Draft& out) {
  watches_->TakeDue(place);
  const std::uint64_t hash = watches_->HashAt(place);
  if (hash == 0) return true;
  Table::Shard shard(*core_.table, hash);
  Watch* const watch = watches_->Find(hash);
  if (watch == nullptr) return true;
  watch->noted = false;
  const Tag tag = watch->kept.tag();
  Slot* const slot = shard.Find(tag, now);
  std::optional<LimitIndex> index;
  if (slot != nullptr) {
    index = LimitIndex{slot->limit};
  } else if (!tag.is_digest) {
    index = core_.rules->Find(tag.bytes);
  }
  if (!index.has_value() || !Has(core_.limit(*index))) {
    watches_->Remove(watch);
    return true;
  }
  const Limit& limit = core_.limit(*index);
  Forecast& forecast = watch->forecast;
  Step(*watch, {tag, hash, limit, slot}, now);
  forecast.ForgetSilent(period(), now);
  forecast.ForgetOwner(kOwnerBelieved, now);
  if (!forecast.Active()) watches_->SetActive(watch, false);
  watches_->SetTurn(watch->place, {forecast.Active() ? Instant::max() : Instant::min(), Duration::max()});
  LookAgain(*watch, now);
  const Unreported hits = slot != nullptr ? slot->unreported : Unreported();
  if (!forecast.Due()) return true;
  if (!forecast.MayReport(now)) {
    Note(*watch);
    return true;
  }
  if (!ReportHits(*watch, *index, hits, slot != nullptr ? &shard.waste(slot) : nullptr, from, now, out)) {
    Note(*watch);
    return false;
  }
  if (hits.any()) shard.TakeUnreported(slot);
  return true;
}

// Reports watches that were noted at once, and active ones in turns.
bool Forecasting::ReportUrgent(Instant from, Instant now, Draft& out) {
  if (watches_ == nullptr || now < spacing_.from()) return false;
  const std::size_t before = out.entries.size(), words = watches_->words();
  noted_.store(false, std::memory_order_relaxed);
  bool room = true;
  for (std::size_t word = watches_->NextWord(0); room && word < words; word = watches_->NextWord(word + 1)) {
    room = LookAtDue(word, from, now, out);
  }
  if (rounds_.at() < now + kUrgentEvery) {    // there is no next call before that
    const auto [first, end] = rounds_.Part(words);
    for (std::size_t word = first; room && word < end; ++word) {
      if (watches_->ActiveOf(word) != 0) room = LookInTurn(word, from, now, out);
    }
    rounds_.Passed(end, words);
    rounds_.GoOn(watches_->any_active() || !room, now);
  }
  if (out.entries.size() > before) spacing_.Left(Square(core_.root_hosts), now);
  return !room;
}

// Looks at what is due in the word. Returns whether there is room for more.
bool Forecasting::LookAtDue(std::size_t word, Instant from, Instant now, Draft& out) {
  for (std::uint64_t left = watches_->TakeWord(word); left != 0; left &= left - 1) {
    if (LookAt(Watches::PlaceOf(word, left), from, now, out)) continue;
    watches_->NoteWord(word);
    return false;
  }
  return true;
}

// The same of those whose turn it is.
bool Forecasting::LookInTurn(std::size_t word, Instant from, Instant now, Draft& out) {
  const std::uint64_t active = watches_->ActiveOf(word);
  const Watches::Turn& soonest = watches_->Soonest(word, active);
  if (soonest.from > now) {
    rounds_.Expect(soonest.every);
    return true;
  }
  for (std::uint64_t left = active; left != 0; left &= left - 1) {
    const std::size_t place = Watches::PlaceOf(word, left);
    const Watches::Turn& its = watches_->turn(place);
    if (its.from > now) {
      rounds_.Expect(its.every);
    } else if (!LookAt(place, from, now, out)) {
      watches_->NoteWord(word);
      return false;
    }
  }
  return true;
}

// ---- For people ----

void Forecasting::Inspect(const TagAt& at, Inspection& seen, Instant now) {
  debits().Inspect(at, seen, now);
  Watch* const watch = watches_->Find(at.hash);
  if (watch == nullptr) return;
  seen.watched = true;
  Step(*watch, at, now);
  const Forecast& f = watch->forecast;
  if (f.Due()) Note(*watch);
  seen.foretold = {f.level(), f.share(), f.demand(), f.peers_demand(), f.held()};
}

void Forecasting::AddStatus(ShareStatus& status) const {
  if (watches_ == nullptr) return;
  status.watched = {watches_->used(), watches_->crowded(), 0};
  for (const PerLane& lane : lanes_) status.watched.held += lane.held.Read();
}

}    // namespace dthrottle
