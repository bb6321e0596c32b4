// share = "forecast": as "debit", and hosts foretell each other between reports.
//
// A tag that matters is watched: its Forecast (forecast.h) decides who may ask the bucket, and says when peers should
// hear of this host before the period is over. The query path only sets a bit then and wakes the owner once;
// ReportUrgent collects what is due.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/counter.h"
#include "share/debit/debits.h"
#include "share/forecast/early_spacing.h"
#include "share/forecast/rounds.h"
#include "share/forecast/watches.h"
#include "share/pace_of.h"
#include "share/share.h"

namespace dthrottle {

class Forecasting final : public Way {
 public:
  static constexpr Share kShare = Share::kForecast;
  static std::optional<Tokens> Excess(const Rule& rule, const FleetTerms& fleet);
  static void Check(const Rule& rule, const FleetTerms& fleet, std::vector<std::string>& warnings);

  Forecasting(LimiterCore& core, Ways& ways);

  void WatchTags(std::size_t tags, const std::function<void()>& wake);

  bool Has(const Limit& limit) const { return watches_ != nullptr && limit.forecast; }
  bool Decide(Asked& asked);
  void Prepare(Asked& asked);
  Tokens MayLend(const Asked& asked);
  void Spent(Asked& asked, Cost tokens, Instant since);
  void CameBack(Asked& asked, Cost tokens);
  void Refuse(Asked& asked);
  std::uint32_t PlacesHere(const Tag& tag, std::uint64_t hash, const Limit& limit, Instant now) {
    return debits().PlacesHere(tag, hash, limit, now);
  }
  bool Would(Looked& looked);
  void Inspect(const TagAt& at, Inspection& seen, Instant now);

  Heed Hear(const PeerWord& word, const TagAt& at, Instant now);
  void PeerGaveBack(const TagAt& at, Cost tokens, Instant now);
  // Until peers hear, and without peers, this way does what "debit" does.
  void SetHeard(bool heard);
  bool CanWait(const Tag& tag, Instant now);
  std::optional<bool> Report(const Tag& tag, const Slot& slot, const Waste& waste, Instant from, Instant to,
                             Draft& out);
  Instant urgent_at() const {
    return std::max(spacing_.from(), noted_.load(std::memory_order_relaxed) ? Instant::min() : rounds_.at());
  }
  bool ReportUrgent(Instant from, Instant now, Draft& out);

  // ---- Where hosts own tags (share/owners) ----

  std::optional<Foretold> ForetoldOf(const TagAt& at, std::uint32_t peer, Instant now);
  std::optional<Instant> ReportedAt(std::uint64_t hash);
  std::optional<Tokens> LevelByOwner(std::uint64_t hash) const;
  void OwnerSaid(const OwnersWord& word, const TagAt& at, Instant now);
  void OwnedHere(const TagAt& at, Instant now);

  std::optional<Tokens> Bound(const Limit& limit, std::span<const PeerAge> peers) const;
  void AddStatus(ShareStatus& status) const;

 private:
  Debits& debits() const;
  Pace PaceOf(const Limit& limit) const { return dthrottle::PaceOf(core_, limit); }
  Duration period() const { return ToDuration(core_.window); }
  Duration rests() const { return 2 * period(); }    // a watch that makes room for another

  Tokens LentOf(std::uint64_t hash) const;
  void Step(Watch& watch, const TagAt& at, Instant now);
  void Renew(Watch& watch, const TagAt& at, Instant now) {
    if (!watch.forecast.Stale(now)) return;
    Step(watch, at, now);
    if (watch.forecast.Due()) Note(watch);
  }
  // False: the query is to be refused, tokens or not.
  bool Foresees(Watch& watch, const Asked& asked);
  static void Missed(Watch& watch, const Asked& asked);
  void WatchNew(const Asked& asked);
  Watch* WatchHeard(const PeerWord& word, const TagAt& at, Instant now);
  void Note(Watch& watch) {
    if (!watch.noted) NoteNow(watch);
  }
  void NoteNow(Watch& watch);
  void LookAgain(const Watch& watch, Instant now);
  bool ReportHits(Watch& watch, LimitIndex limit, Unreported hits, const Waste* waste, Instant from, Instant to,
                  Draft& out);
  bool LookAtDue(std::size_t word, Instant from, Instant now, Draft& out);
  bool LookInTurn(std::size_t word, Instant from, Instant now, Draft& out);
  bool LookAt(std::size_t place, Instant from, Instant now, Draft& out);

  LimiterCore& core_;
  Ways& ways_;
  std::unique_ptr<Watches> watches_;    // null: none. The lock of its tag's shard guards each watch
  bool heard_ = false;
  std::function<void()> wake_;
  std::atomic<bool> noted_{false};
  struct alignas(64) PerLane {
    Counter held;    // queries refused because peers had not heard of enough
  };
  std::vector<PerLane> lanes_;

  Rounds rounds_;
  EarlySpacing spacing_;
};

inline bool Forecasting::Foresees(Watch& watch, const Asked& asked) {
  Renew(watch, {asked.query.tag, asked.hash, asked.limit, asked.slot}, asked.now);
  if (watch.forecast.Admits(asked.query.cost) || !heard_ || asked.query.cost == 0) return true;
  if (watch.forecast.held()) {
    lanes_[asked.lane].held.Add();
    Note(watch);
  }
  return false;
}

// What the bucket never holds is no demand: no host will ever serve it.
inline void Forecasting::Missed(Watch& watch, const Asked& asked) {
  if (asked.limit.shape.Holds(asked.query.cost)) watch.forecast.Missed(asked.query.cost);
}

inline bool Forecasting::Decide(Asked& asked) {
  if (core_.window == 0) return debits().Decide(asked);
  Watch* const watch = watches_->Find(asked.hash);
  if (watch == nullptr) {
    const bool within = debits().Decide(asked);
    if (within && asked.slot != nullptr) WatchNew(asked);
    return within;
  }
  const Cost cost = asked.query.cost;
  if (!Foresees(*watch, asked)) {
    Missed(*watch, asked);
    debits().Refuse(asked);
    return false;
  }
  const bool within = debits().Decide(asked);
  if (!within || asked.slot == nullptr) {
    Missed(*watch, asked);
  } else {
    watch->here = true;
    if (watch->forecast.Took(cost)) Note(*watch);
  }
  return within;
}

// What was spent is told like the rest.
inline void Forecasting::Spent(Asked& asked, Cost tokens, Instant since) {
  debits().Spent(asked, tokens, since);
  if (core_.window == 0 || asked.slot == nullptr) return;
  if (Watch* const watch = watches_->Find(asked.hash); watch != nullptr) {
    watch->here = true;
    if (watch->forecast.Spent(tokens, since)) Note(*watch);
  } else {
    WatchNew(asked);
  }
}

inline void Forecasting::Refuse(Asked& asked) {
  if (Watch* const watch = core_.window != 0 ? watches_->Find(asked.hash) : nullptr; watch != nullptr) {
    Missed(*watch, asked);
  }
  debits().Refuse(asked);
}

inline bool Forecasting::Would(Looked& looked) {
  Watch* const watch = core_.window != 0 ? watches_->Find(looked.hash) : nullptr;
  if (watch != nullptr) {
    Renew(*watch, {looked.query.tag, looked.hash, looked.limit, looked.slot}, looked.now);
    const Cost cost = looked.query.cost;
    if (heard_ && cost != 0 && !watch->forecast.WouldAdmit(cost)) return false;
  }
  return looked.Within();
}

}    // namespace dthrottle
