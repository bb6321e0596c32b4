// The tags whose hits other hosts should hear of before the period is over, a bounded number of them, in a side table
// with sets of eight. When all eight are taken the one that rests longest makes room, and if none rests there is no
// watch: the tag is shared by periodic reports, as under `debit`.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/side_table.h"
#include "base/tag.h"
#include "share/forecast/forecast.h"

namespace dthrottle {

struct Watch {
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
    Duration every{};    // the parts of a round follow each other so fast
  };

  // Room for `tags`, rounded up to a power of two; memory is taken at once.
  explicit Watches(std::size_t tags)
      : watches_(tags),
        due_(watches_.places() / kWordPlaces),
        active_(watches_.places() / kWordPlaces),
        turns_(watches_.places()),
        soonest_(watches_.places() / kWordPlaces) {}

  // REQUIRES of these three: the shard of `hash` is locked.
  Watch* Find(std::uint64_t hash) {
    const std::size_t place = watches_.Find(hash);
    return place != watches_.kNone ? &*watches_[place] : nullptr;
  }
  // Null if there is no room: every watch of the set was active within `rests`. REQUIRES: Find(hash) is null.
  Watch* Add(std::uint64_t hash, const Tag& tag, Tokens level, Tokens unreported, Duration rests, Instant now) {
    const std::size_t place = watches_.RoomFor(hash, [&](std::size_t there) {
      const Forecast& forecast = watches_[there]->forecast;
      return forecast.Idle(rests, now) ? std::optional(forecast.active_at()) : std::nullopt;
    });
    if (place == watches_.kNone) {
      crowded_.fetch_add(hash != 0, std::memory_order_relaxed);
      return nullptr;
    }
    watches_[place] = Watch{Forecast(level, unreported, now), place, KeptTag(tag)};
    Set(active_, place, false);
    watches_.Put(place, hash);
    return &*watches_[place];
  }
  void Remove(Watch* watch) {
    const std::size_t place = watch->place;
    Set(active_, place, false);
    watches_.Remove(place);
    watches_[place].reset();
  }

  // The watch is due. Any thread, with the lock of its shard.
  void Note(const Watch* watch) { Set(due_, watch->place, true); }
  // Whether it is to be looked at again and again. Likewise.
  void SetActive(const Watch* watch, bool active) { Set(active_, watch->place, active); }

  // ---- For one thread that goes through all, without a lock ----

  std::size_t places() const { return watches_.places(); }
  // The places that were noted since they were taken, of the word'th kWordPlaces.
  std::uint64_t DueOf(std::size_t word) const { return due_[word].load(std::memory_order_relaxed); }
  std::uint64_t ActiveOf(std::size_t word) const { return active_[word].load(std::memory_order_relaxed); }
  const Turn& turn(std::size_t place) const { return turns_[place]; }
  void SetTurn(std::size_t place, const Turn& turn) {
    turns_[place] = turn;
    soonest_[place / kWordPlaces].of = 0;
  }
  // The earliest `from` and the shortest `every` of these places of a word. Both are remembered for as long as none of
  // their turns changes and the same places are asked for, because most rounds find nothing to look at.
  const Turn& Soonest(std::size_t word, std::uint64_t places) {
    auto& [of, soonest] = soonest_[word];
    if (of == places) return soonest;
    of = places;
    soonest = {Instant::max(), Duration::max()};
    for (std::uint64_t left = places; left != 0; left &= left - 1) {
      const Turn& turn = turns_[word * kWordPlaces + static_cast<std::size_t>(std::countr_zero(left))];
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

  static void Set(Bits& bits, std::size_t place, bool value) {
    std::atomic<std::uint64_t>& word = bits[place / kWordPlaces];
    const std::uint64_t bit = std::uint64_t{1} << place % kWordPlaces;
    if (((word.load(std::memory_order_relaxed) & bit) != 0) == value) return;
    if (value) {
      word.fetch_or(bit, std::memory_order_relaxed);
    } else {
      word.fetch_and(~bit, std::memory_order_relaxed);
    }
  }

  SideTable<std::optional<Watch>, kWays> watches_;
  Bits due_, active_;
  std::vector<Turn> turns_;    // by place
  struct OfWord {
    std::uint64_t of = 0;    // places; none: nothing is known
    Turn soonest;
  };
  std::vector<OfWord> soonest_;
  std::atomic<std::uint64_t> crowded_{0};
};

}    // namespace dthrottle
