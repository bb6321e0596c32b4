// The tags whose hits other hosts should hear of before the period is over, a bounded number of them, in a side table
// with sets of eight. When all eight are taken the one that rests longest makes room. If none rests, one of a tag that
// only a peer asks for makes room: for a tag that is served here, and for one of a peer with fewer there. Else there is
// no watch: the tag is shared by periodic reports, as under `debit`.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/side_table.h"
#include "base/tag.h"
#include "share/forecast/forecast.h"

namespace dthrottle {

struct Watch {
  bool here = false;         // its tag is served here; else only the peer asks for it
  std::uint32_t peer = 0;    // as PeerWord::from_whom
  Forecast forecast;
  std::size_t place;
  KeptTag kept;
  bool noted = false;    // as due
};

class Watches {
 public:
  static constexpr std::size_t kWays = 8;

  // Places whose bits are in one word.
  static constexpr std::size_t kWordPlaces = 64;

  // When an active watch is looked at again; only for the thread that goes through all.
  struct Turn {
    Instant from = Instant::min();
    Duration every{};    // between two parts of a round
  };

  // Room for `tags`, rounded up to a power of two; memory is taken at once.
  explicit Watches(std::size_t tags)
      : watches_(tags),
        due_(watches_.places() / kWordPlaces),
        due_words_((due_.size() + kWordPlaces - 1) / kWordPlaces),
        active_(watches_.places() / kWordPlaces),
        turns_(watches_.places()),
        soonest_(watches_.places() / kWordPlaces) {}

  // REQUIRES of these three: the shard of `hash` is locked.
  Watch* Find(std::uint64_t hash) {
    const std::size_t place = watches_.Find(hash);
    return place != watches_.kNone ? &*watches_[place] : nullptr;
  }
  // The watch of a tag that is served here. Null if there is no room: every watch of the set is of such a tag, and was
  // active within `rests`. REQUIRES: Find(hash) is null.
  Watch* Add(std::uint64_t hash, const Tag& tag, Tokens level, Tokens unreported, Duration rests, Instant now) {
    const auto gives_way = [&](const Watch& its) { return !its.here; };
    return Put(RoomFor(hash, gives_way, rests, now), hash,
               {.here = true, .forecast = Forecast(level, unreported, now), .place = 0, .kept = KeptTag(tag)});
  }
  // The same of a tag that only that peer asks for. Null if there is no room: no other peer has more of the set.
  Watch* AddHeard(std::uint64_t hash, const Tag& tag, std::uint32_t peer, Tokens level, Duration rests, Instant now) {
    const std::size_t ours = HeardNear(hash, peer);
    const auto gives_way = [&](const Watch& its) { return !its.here && HeardNear(hash, its.peer) > ours + 1; };
    return Put(RoomFor(hash, gives_way, rests, now), hash,
               {.peer = peer, .forecast = Forecast(level, 0, now), .place = 0, .kept = KeptTag(tag)});
  }
  void Remove(Watch* watch) {
    const std::size_t place = watch->place;
    SetActive(watch, false);
    watches_.Remove(place);
    watches_[place].reset();
  }

  // The watch is due. Any thread, with the lock of its shard.
  void Note(const Watch* watch) {
    if (Set(due_, watch->place, true)) NoteWord(watch->place / kWordPlaces);
  }
  // Whether it is to be looked at again and again. Likewise.
  void SetActive(const Watch* watch, bool active) {
    if (!Set(active_, watch->place, active)) return;
    active_places_.fetch_add(active ? 1 : -1, std::memory_order_relaxed);
  }

  // ---- For one thread that goes through all, without a lock ----

  std::size_t places() const { return watches_.places(); }
  std::size_t words() const { return due_.size(); }
  bool any_active() const { return active_places_.load(std::memory_order_relaxed) > 0; }
  // The first word at or behind `from` that was noted since it was taken; words(): there is none.
  std::size_t NextWord(std::size_t from) const {
    std::uint64_t mask = ~std::uint64_t{0} << from % kWordPlaces;
    for (std::size_t i = from / kWordPlaces; i < due_words_.size(); ++i, mask = ~std::uint64_t{0}) {
      const std::uint64_t noted = due_words_[i].load(std::memory_order_relaxed) & mask;
      if (noted != 0) return i * kWordPlaces + static_cast<std::size_t>(std::countr_zero(noted));
    }
    return words();
  }
  // The places that were noted since they were taken, of the word'th kWordPlaces. The word is taken before it is read,
  // so what is noted meanwhile is found later if not now.
  std::uint64_t TakeWord(std::size_t word) {
    due_words_[word / kWordPlaces].fetch_and(~(std::uint64_t{1} << word % kWordPlaces), std::memory_order_acquire);
    return due_[word].load(std::memory_order_relaxed);
  }
  // The word has places that are due: a new one, or some that were left when it was taken.
  void NoteWord(std::size_t word) {
    due_words_[word / kWordPlaces].fetch_or(std::uint64_t{1} << word % kWordPlaces, std::memory_order_release);
  }
  std::uint64_t ActiveOf(std::size_t word) const { return active_[word].load(std::memory_order_relaxed); }
  const Turn& turn(std::size_t place) const { return turns_[place]; }
  void SetTurn(std::size_t place, const Turn& turn) {
    turns_[place] = turn;
    soonest_[place / kWordPlaces].of = 0;
  }
  // The place of the lowest of these bits of a word.
  static std::size_t PlaceOf(std::size_t word, std::uint64_t bits) {
    return word * kWordPlaces + static_cast<std::size_t>(std::countr_zero(bits));
  }
  // The earliest `from` and the shortest `every` of these places of a word. Both are remembered for as long as none of
  // their turns changes and the same places are asked for, because most rounds find nothing to look at.
  const Turn& Soonest(std::size_t word, std::uint64_t places) {
    auto& [of, soonest] = soonest_[word];
    if (of == places) return soonest;
    of = places;
    soonest = {Instant::max(), Duration::max()};
    for (std::uint64_t left = places; left != 0; left &= left - 1) {
      const Turn& turn = turns_[PlaceOf(word, left)];
      soonest = {std::min(soonest.from, turn.from), std::min(soonest.every, turn.every)};
    }
    return soonest;
  }
  void TakeDue(std::size_t place) { Set(due_, place, false); }
  // 0: nothing is there. With the shard of that hash locked, Find says whether it still is.
  std::uint64_t HashAt(std::size_t place) const { return watches_.HashAt(place); }

  std::uint64_t used() const { return watches_.used(); }                                // now
  std::uint64_t crowded() const { return crowded_.load(std::memory_order_relaxed); }    // times that there was no room

 private:
  using Bits = std::vector<std::atomic<std::uint64_t>>;    // one for each place
  static_assert(SideTable<std::optional<Watch>, kWays>::kSetsMin * kWays % kWordPlaces == 0);

  // Returns whether this changed it.
  static bool Set(Bits& bits, std::size_t place, bool value) {
    std::atomic<std::uint64_t>& word = bits[place / kWordPlaces];
    const std::uint64_t bit = std::uint64_t{1} << place % kWordPlaces;
    if (((word.load(std::memory_order_relaxed) & bit) != 0) == value) return false;
    const std::uint64_t before =
        value ? word.fetch_or(bit, std::memory_order_relaxed) : word.fetch_and(~bit, std::memory_order_relaxed);
    return ((before & bit) != 0) != value;
  }

  using Worth = std::pair<std::size_t, Instant>;

  std::size_t HeardNear(std::uint64_t hash, std::uint32_t peer) const {
    return watches_.CountNear(hash, [&](const std::optional<Watch>& its) { return !its->here && its->peer == peer; });
  }
  // The one that rests longest makes room, then one of the peer with most there that gives way.
  template <class GivesWay>
  std::size_t RoomFor(std::uint64_t hash, GivesWay&& gives_way, Duration rests, Instant now) const {
    return watches_.RoomFor(hash, [&](std::size_t place) -> std::optional<Worth> {
      const Watch& its = *watches_[place];
      if (its.forecast.Idle(rests, now)) return Worth(0, its.forecast.active_at());
      if (!gives_way(its)) return std::nullopt;
      return Worth(1 + kWays - HeardNear(hash, its.peer), its.forecast.active_at());
    });
  }
  Watch* Put(std::size_t place, std::uint64_t hash, Watch&& watch) {
    if (place == watches_.kNone) {
      crowded_.fetch_add(hash != 0, std::memory_order_relaxed);
      return nullptr;
    }
    watch.place = place;
    watches_[place] = std::move(watch);
    SetActive(&*watches_[place], false);
    watches_.Put(place, hash);
    return &*watches_[place];
  }

  SideTable<std::optional<Watch>, kWays> watches_;
  Bits due_;
  Bits due_words_;    // one bit for each word of due_
  Bits active_;
  std::atomic<std::int64_t> active_places_{0};
  std::vector<Turn> turns_;    // by place
  struct OfWord {
    std::uint64_t of = 0;    // places; none: nothing is known
    Turn soonest;
  };
  std::vector<OfWord> soonest_;
  std::atomic<std::uint64_t> crowded_{0};
};

}    // namespace dthrottle
