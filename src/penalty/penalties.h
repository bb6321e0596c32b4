// Penalties: a tag that was refused too often is refused at once, for a while and on all hosts.
//
// Refusals by the limit are counted from the first one on, for as long as the rule says; then the count begins anew
// (strikes.h). So a tag is never penalized for fewer than `after` refusals within that time, and at the latest for
// twice as many. While a penalty is in force its refusals count for nothing, so it ends when it was said to end.
//
// Peers' refusals count too. A host begins a penalty only when it refuses the tag itself; the owner of a tag begins
// one by what it hears as well.
//
// The table is bounded. A penalty in force never makes room; where all places of a set are taken, the tag is refused by
// its limit alone. What peers say takes three places of the seven of a set, so a peer that lies keeps no penalty of this
// host's out. Peers share these: one of the peer that has most of them makes room for the others'.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"
#include "penalty/strikes.h"
#include "rule/rule.h"

namespace dthrottle {

struct PenaltyCounts {
  std::uint64_t tags = 0;       // remembered now: penalized, or were so lately
  std::uint64_t begun = 0;      // here
  std::uint64_t heard = 0;      // from peers
  std::uint64_t lifted = 0;     // before their time, by people here or elsewhere
  std::uint64_t crowded = 0;    // could not be kept for want of room
  std::uint64_t refusals_heard = 0;     // of peers
  std::uint64_t refusals_untold = 0;    // that no peer hears of, for want of room
  std::uint64_t refusals_crowded = 0;   // by other hosts, that do not count for want of room
};

// How long a penalty still lasts, as hosts say it; 0: it is over.
inline std::uint64_t PenaltyMilliseconds(Duration left) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(left, Duration::zero())).count();
  return static_cast<std::uint64_t>(ms);
}

// A tag that is penalized.
struct PenaltyAt {
  KeptTag tag;
  Instant until{};
  Duration length{};    // of the whole penalty
  bool heard = false;   // a peer said so
  Instant passed_at{};    // by an owner of tags, to all other hosts
  // When people lifted it, and when it would have ended: hosts that have not heard of that may tell of it still.
  Instant lifted = Instant::min(), would_end = Instant::min();
  std::uint32_t peer = UINT32_MAX;    // the one that said so; UINT32_MAX: it is not known

  // It is in force, or ended no longer ago than it lasted.
  bool remembered(Instant now) const { return now < until + length; }

  // Whether a penalty that ends then is the one that was lifted, or began before.
  bool Lifted(Instant ends, const Penalty& terms) const {
    constexpr Duration kSame = std::chrono::seconds(1);
    return ends - terms.lasts < lifted || (ends <= would_end + kSame && ends + kSame >= would_end);
  }
};

class Penalties {
 public:
  static constexpr std::size_t kTags = 7 * 2048;                    // that are penalized
  static constexpr Duration kLongest = std::chrono::hours(24 * 7);  // where penalties double

  // Takes memory, once. REQUIRES of all others: it has been called, or no limit has a penalty. With the table locked.
  void Enable();
  // Calls `wake`, from any thread, when peers are to be told of penalties, once until TellSome; and likewise of
  // refusals. With the table locked.
  void SetWake(const std::function<void()>& wake) { wake_ = wake, strikes_.SetWake(wake); }

  // ---- With the shard of the tag locked, any thread ----

  // How long the tag is refused from now on; zero: it is not penalized.
  Duration Left(std::uint64_t hash, Instant now) const;

  // The limit has refused the tag, and so many hosts share it.
  void Refused(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::size_t hosts, Instant now);
  // The peer says that it has, so often; `may` as for Strikes::Heard. True: with all others that is enough for a
  // penalty, which has not begun.
  bool HearRefusals(std::uint64_t hash, std::uint32_t peer, std::uint64_t refusals, const Penalty& terms, Instant now,
                    const std::function<bool()>& may);
  // Begins it by what peers said; such penalties have as little room as those that peers tell of.
  void BeginHeard(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Penalty& terms, Instant now);

  // The peer says that the tag is penalized until then; an instant that is not after `now` lifts the penalty. One that
  // was lifted here does not come back. False: there is no room.
  bool Hear(const Tag& tag, std::uint64_t hash, std::uint32_t peer, const Penalty& terms, Instant until, Instant now);

  // Goes on with one that a process before has left, in force or over. It has as much room as one that begins here, and
  // lasts no longer than the rule says now. One that is not remembered any more is left out.
  void Restore(PenaltyAt left, std::uint64_t hash, const Penalty& terms, Instant now);

  // The one of the tag, if there is one, lasts no longer than the rule says now.
  void Shorten(std::uint64_t hash, const Penalty& terms, Instant now);

  // The rule says nothing of penalties now: the one of the tag is forgotten. Peers hear nothing of that.
  void Forget(std::uint64_t hash);

  // An owner of tags has heard of it from one host, and tells all others: what is new, and again at most once a second.
  // `known`: what Left said before.
  void PassOn(std::uint64_t hash, Duration known, Instant now);

  // Ends the penalty, and forgets refusals that were counted. Peers are told of the former. False: there was none.
  bool Lift(std::uint64_t hash, Instant now);
  // Tells peers that it has ended, since they may know one that this host does not.
  void TellLifted(const Tag& tag, std::uint64_t hash, const Penalty& terms, Instant now);

  // ---- For the owner's thread, which locks the shard of a hash by `lock(hash)` ----

  // Calls use(PenaltyAt) for each tag that is penalized, or was so lately and is remembered where penalties double.
  template <class Lock, class Use>
  void ForEach(Lock&& lock, Instant now, Use&& use) const {
    if (table_ == nullptr) return;
    table_->ForEach(lock, [&](std::size_t place, auto&) {
      if (Its(place).remembered(now)) use(Its(place));
    });
  }

  // Something is to be told to peers.
  bool any_untold() const { return table_ != nullptr && table_->any_untold(); }
  // Calls tell(tag, left, locked) for each penalty that is to be told, with the lock of its shard, and zero for one that
  // was lifted, until it returns false: there is no room now. True: there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Instant now, Tell&& tell) {
    if (table_ == nullptr) return false;
    return table_->TellSome(lock, [&](std::size_t place, auto& locked) {
      return tell(Its(place).tag.tag(), std::max(Its(place).until - now, Duration::zero()), locked);
    });
  }
  // Tells all that is in force once more, and what was lifted, for a host that has just come.
  template <class Lock>
  void TellAgain(Lock&& lock, Instant now) {
    if (table_ == nullptr) return;
    table_->ForEach(lock, [&](std::size_t place, auto&) {
      if (Its(place).until > now || Its(place).would_end > now) SetUntold(place);
    });
  }

  // What peers hear of refusals.
  Strikes& strikes() { return strikes_; }
  const Strikes& strikes() const { return strikes_; }

  PenaltyCounts counts() const;

 private:
  static constexpr std::size_t kWays = 7, kHeardMax = 3;

  using Table = ToldTable<PenaltyAt, kWays>;

  const PenaltyAt& Its(std::size_t place) const { return (*table_)[place]; }
  void SetUntold(std::size_t place);
  void Begin(const Tag& tag, std::uint64_t hash, const Penalty& terms, bool heard, Instant now);
  std::size_t PlaceOf(std::uint64_t hash, Instant now);
  void End(PenaltyAt& its, Instant would_end, Instant now);
  template <class Is>
  std::size_t HeardNear(std::uint64_t hash, Instant now, Is&& is) const;
  bool HeardFillSet(std::uint64_t hash, Instant now) const;
  bool MakeRoomFor(std::uint64_t hash, std::uint32_t peer, Instant now);

  std::unique_ptr<Table> table_;
  Strikes strikes_;
  std::function<void()> wake_;
  std::atomic<std::uint64_t> begun_{0}, heard_{0}, lifted_{0}, crowded_{0};
};

}    // namespace dthrottle
