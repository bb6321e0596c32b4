// Tags whose hits other hosts should hear of early: when they are watched, what of them is urgent, and what their
// forecasts refuse.
#include <algorithm>
#include <cmath>

#include "bucket/table_lookup.h"
#include "limiter/limiter.h"

namespace dthrottle {

namespace {

// A tag is watched when half of its burst would be gone if all hosts had served what this one has not reported yet;
// when half of U has been served; or when half of the burst is gone.
constexpr double kWatchDrained = 0.5;
constexpr Tokens kUnbounded = 1e18;
constexpr int kCanWaitPeriods = 2;     // how long hits below the threshold wait
constexpr std::size_t kPartsOfRound = 5;
// Active watches are looked at in rounds, a part of them at once; by the time of the next part, of no tag is more than
// this asked for.
constexpr Tokens kBetweenParts = 0.1;
constexpr Duration kLookEveryMax = std::chrono::milliseconds(200);

}    // namespace

void Limiter::WatchTags(std::size_t tags, bool eager, std::function<void()> wake) {
  table_->Exclusively([&] {
    watches_ = std::make_unique<Watches>(tags);
    eager_ = eager;
    wake_ = std::move(wake);
  });
}

void Limiter::SetHeard(bool heard) {
  if (heard != heard_) table_->Exclusively([&] { heard_ = heard; });
}

Tokens Limiter::UnheardMax(const Limit& limit) const {
  if (!limit.forecast) return kUnbounded;
  return limit.max_unheard > 0 ? limit.max_unheard : UnheardMaxOf(limit.shape.burst(), root_hosts_);
}

Pace Limiter::PaceOf(const Limit& limit) const {
  return {limit.shape.rate(), limit.shape.burst(),          UnheardMax(limit),
          root_hosts_,        Seconds(ToDuration(window_)), limit.forecast};
}

BoundTerms Limiter::BoundTermsOf(const Limit& limit) const {
  const Pace pace = PaceOf(limit);
  const bool foretold = limit.forecast && Watched(limit);
  return {pace.burst, pace.rate, foretold ? std::optional(pace.unheard_max) : std::nullopt, ToDuration(window_)};
}

// ---- Queries ----

void Limiter::StepWatch(Watch& watch, const Bucket& bucket, const Limit& limit, Instant now) {
  watch.forecast.Step(bucket.Level(limit.shape, now), PaceOf(limit), now);
  if (watch.forecast.Due()) Note(watch);
}

// Watches the tag of a slot from now on, if it has come that far.
void Limiter::WatchNew(const Query& query, std::uint64_t hash, const Slot& slot, const Limit& limit, Instant now) {
  const Tokens all = kWatchDrained * limit.shape.burst();
  if (slot.unreported < std::min(all / (root_hosts_ * root_hosts_), kWatchDrained * UnheardMax(limit)) &&
      slot.bucket.Drained(limit.shape, now) < kWatchDrained) {
    return;
  }
  Watch* const watch = watches_->Add(hash, query.tag, slot.bucket.Level(limit.shape, now), slot.unreported,
                                     ToDuration(2 * window_), now);
  if (watch != nullptr) Note(*watch);
}

void Limiter::NoteNow(Watch& watch) {
  watch.noted = true;
  watches_->Note(&watch);
  if (!noted_.exchange(true, std::memory_order_relaxed) && wake_) wake_();
}

// An active watch is looked at in turns, because demand may also cease.
void Limiter::LookAgain(const Watch& watch, Instant now) {
  const Forecast& forecast = watch.forecast;
  if (!forecast.Active()) return;
  watches_->SetActive(&watch, true);
  const std::chrono::duration<double> part(kBetweenParts / (forecast.demand() + forecast.peers_demand()));
  round_every_ = std::min(round_every_, std::max(std::chrono::duration_cast<Duration>(part), kUrgentEvery));
  look_every_ = std::min(look_every_, round_every_);
  look_at_ = std::min(look_at_, now + look_every_);
}

// ---- What peers say ----

// Returns as of when the hits are to be charged.
Instant Limiter::Hear(const PeerWord& word, const Tag& tag, std::uint64_t hash, const Slot* slot, const Limit& limit,
                      Instant now) {
  Watch* watch = watches_->Find(hash);
  const bool begins = watch == nullptr && word.demand > 0 && limit.forecast && heard_;
  if (watch == nullptr && !begins) return word.when;
  const Tokens level = (slot != nullptr ? slot->bucket : Bucket()).Level(limit.shape, now);
  if (begins) {
    watch = watches_->Add(hash, tag, level, slot != nullptr ? slot->unreported : 0, ToDuration(2 * window_), now);
    if (watch == nullptr) return word.when;
  }
  Forecast& forecast = watch->forecast;
  const Pace pace = PaceOf(limit);
  forecast.Step(level, pace, now);
  const Forecast::Heed heed = forecast.Heard(word, pace, now);
  if (!limit.forecast) return heed.charged_at;
  merge_counts_.disbelieved += !heed.believed;
  LookAgain(*watch, now);
  // Its bucket has not heard of what is foretold.
  if (forecast.level() < pace.burst / 5) certificate_.Drained(hash, tag, counter_of_rule_[limit.rule], 0, 0);
  return heed.charged_at;
}

// ---- Reports ----

bool Limiter::CanWait(const Tag& tag, const Slot& slot, Instant now) const {
  if (!Watched(rules_->limit(slot.limit))) return false;
  const Watch* watch = watches_->Find(table_->Hash(tag));
  return watch != nullptr && now - watch->forecast.reported_at() < kCanWaitPeriods * ToDuration(window_);
}

// Hits of a tag that is watched wait for longer than a report's interval, so they carry their own beginning: their first
// hit, or that of the burst that followed a rest. False, and nothing has changed, if there is no room.
bool Limiter::ReportHits(Watch& watch, LimitIndex index, Tokens hits, const Waste* waste, Instant from, Instant to,
                         Draft& out) {
  const Limit& limit = rules_->limit(index);
  Ticks began = ToTicks(watch.forecast.began().value_or(from));
  if (waste != nullptr) began = std::max(began, waste->Since(ToTicks(to)));
  Said said{static_cast<std::uint64_t>(hits), {}};
  if (limit.forecast) said.demand = static_cast<std::uint64_t>(std::llround(1000 * watch.forecast.announces()));
  if (!AddHits(watch.tag(), index, said, began, out)) return false;
  watch.forecast.Report(PaceOf(limit), limit.forecast, to);
  LookAgain(watch, to);
  return true;
}

// Reports the hits of one watch if that is urgent. False if there is no room.
bool Limiter::LookAt(std::uint64_t hash, Instant from, Instant now, Draft& out) {
  Table::Shard shard(*table_, hash);
  Watch* const watch = watches_->Find(hash);
  if (watch == nullptr) return true;
  watch->noted = false;
  Slot* const slot = shard.Find(watch->tag(), now);
  std::optional<LimitIndex> index;
  if (slot != nullptr) {
    index = LimitIndex{slot->limit};
  } else if (!watch->tag().is_digest) {
    index = rules_->Find(watch->tag().bytes);
  }
  if (!index.has_value() || !Watched(rules_->limit(*index))) {
    watches_->Remove(watch);
    return true;
  }
  const Limit& limit = rules_->limit(*index);
  Forecast& forecast = watch->forecast;
  forecast.Step((slot != nullptr ? slot->bucket : Bucket()).Level(limit.shape, now), PaceOf(limit), now);
  forecast.ForgetSilent(kBelievedPeriods * ToDuration(window_), now);
  if (!forecast.Active()) watches_->SetActive(watch, false);
  LookAgain(*watch, now);
  const std::uint32_t hits = slot != nullptr ? slot->unreported : 0;
  if (!forecast.Due() || (hits == 0 && !limit.forecast)) return true;
  if (!forecast.MayReport(now)) {
    Note(*watch);
    return true;
  }
  if (!ReportHits(*watch, *index, hits, slot != nullptr ? &shard.waste(slot) : nullptr, from, now, out)) {
    Note(*watch);
    return false;
  }
  if (slot != nullptr) shard.TakeUnreported(slot);
  return true;
}

// Those that were noted at once, and the active ones in turns.
bool Limiter::ReportUrgent(Instant from, Instant now, Draft& out) {
  if (watches_ == nullptr) return false;
  noted_.store(false, std::memory_order_relaxed);
  bool room = true, active = false;
  const std::size_t sets = watches_->sets();
  const bool turn = look_at_ < now + kUrgentEvery;    // there is no next call before that
  const std::size_t end = next_set_ + (turn ? (sets + kPartsOfRound - 1) / kPartsOfRound : 0);
  for (std::size_t set = 0; set < sets && room; ++set) {
    const std::uint8_t in_turns = watches_->ActiveOf(set);
    active = active || in_turns != 0;
    const auto due = static_cast<std::uint8_t>(watches_->DueOf(set) | (set >= next_set_ && set < end ? in_turns : 0));
    if (due == 0) continue;
    for (std::size_t way = 0; way < Watches::kWays && room; ++way) {
      if ((due >> way & 1) == 0) continue;
      watches_->TakeDue(set, way);
      if (const std::uint64_t hash = watches_->HashAt(set, way); hash != 0) room = LookAt(hash, from, now, out);
    }
  }
  if (turn) {
    next_set_ = end < sets ? end : 0;
    if (next_set_ == 0) look_every_ = std::exchange(round_every_, Duration::max());
    look_at_ = active || !room ? now + std::min(look_every_, kLookEveryMax) : Instant::max();
  }
  return !room;
}

WatchCounts Limiter::watch_counts() const {
  if (watches_ == nullptr) return {};
  std::uint64_t held = 0;
  for (const auto& lane : lanes_) held += lane->held_.Read();
  return {watches_->used(), watches_->crowded(), held};
}

}    // namespace dthrottle
