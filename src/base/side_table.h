// A bounded table beside the table of buckets: what a few tags need and a bucket has no room for.
//
// An entry is found by the keyed hash of its tag, in the one set of kWays places that the upper bits of the hash name.
// The hashes of a set share a cache line with its `Beside`, which is wanted together with them. Entries never move, and
// the owner chooses which of them makes room. All hashes of a set are of one shard of the table of buckets, so that
// shard's lock guards the set; hashes are atomic, so a thread may read all of them without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <variant>
#include <vector>

namespace dthrottle {

// A key for what a tag has several of, each with a name, in a set of the tag's shard.
inline std::uint64_t SideKey(std::uint64_t hash, std::uint64_t name) {
  constexpr unsigned kShardBits = 6;
  const std::uint64_t mixed = (hash ^ name * 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  const std::uint64_t key = hash >> (64 - kShardBits) << (64 - kShardBits) | (mixed ^ mixed >> 32) >> kShardBits;
  return key != 0 ? key : 1;
}

template <class Entry, std::size_t kWays, class Beside = std::monostate>
class SideTable {
 public:
  static constexpr std::size_t kSetsMin = 64;    // no fewer than shards of a table of buckets
  static constexpr std::size_t kNone = SIZE_MAX;

  // Room for `entries`, rounded up to a power of two. Memory is taken at once, but pages of it only where entries are.
  explicit SideTable(std::size_t entries)
      : sets_(std::bit_ceil(std::max(entries / kWays, kSetsMin))),
        entries_(static_cast<Entry*>(::operator new(places() * sizeof(Entry), std::align_val_t(alignof(Entry))))),
        begun_(sets_.size()) {}
  ~SideTable() {
    for (std::size_t set = 0; set < sets(); ++set) {
      if (begun_[set]) std::destroy_n(entries_ + set * kWays, kWays);
    }
    ::operator delete(entries_, std::align_val_t(alignof(Entry)));
  }
  SideTable(const SideTable&) = delete;
  SideTable& operator=(const SideTable&) = delete;

  std::size_t sets() const { return sets_.size(); }
  std::size_t places() const { return sets_.size() * kWays; }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }
  // The hash at a place; 0: the place is free.
  std::uint64_t HashAt(std::size_t place) const {
    return sets_[place / kWays].hashes[place % kWays].load(std::memory_order_relaxed);
  }

  // ---- With the set of `hash` locked. No entry has the hash 0 ----

  // REQUIRES of these two: RoomFor has given a place of the set.
  Entry& operator[](std::size_t place) { return entries_[place]; }
  const Entry& operator[](std::size_t place) const { return entries_[place]; }
  Beside& beside(std::size_t place) { return sets_[place / kWays].beside; }

  // The place of the entry; kNone if there is none.
  std::size_t Find(std::uint64_t hash) const {
    if (used() == 0) return kNone;    // most tables are empty, and their memory stays untouched
    const auto& hashes = sets_[hash >> shift_].hashes;
    for (std::size_t way = 0; way < kWays; ++way) {
      if (hashes[way].load(std::memory_order_relaxed) == hash && hash != 0) return (hash >> shift_) * kWays + way;
    }
    return kNone;
  }

  // The first place of the set, of kWays.
  std::size_t FirstNear(std::uint64_t hash) const { return (hash >> shift_) * kWays; }

  // The number of entries in the set.
  std::size_t UsedNear(std::uint64_t hash) const {
    const auto used = [](const auto& its) { return its.load(std::memory_order_relaxed) != 0; };
    return static_cast<std::size_t>(std::ranges::count_if(sets_[hash >> shift_].hashes, used));
  }
  // The number of those for which is(entry).
  template <class Is>
  std::size_t CountNear(std::uint64_t hash, Is&& is) const {
    const std::size_t first = FirstNear(hash);
    std::size_t count = 0;
    for (std::size_t place = first; place < first + kWays; ++place) count += HashAt(place) != 0 && is(entries_[place]);
    return count;
  }

  // A free place of the set, else the place of the entry with the least `worth(place)`. An entry whose worth is none
  // stays; kNone: all stay. REQUIRES: Find(hash) is kNone.
  template <class Worth>
  std::size_t RoomFor(std::uint64_t hash, Worth&& worth) const {
    if (hash == 0) return kNone;
    const std::size_t first = FirstNear(hash);
    if (!begun_[first / kWays]) {
      std::uninitialized_value_construct_n(entries_ + first, kWays);
      begun_[first / kWays] = true;
    }
    std::size_t chosen = kNone;
    decltype(worth(first)) least{};
    for (std::size_t place = first; place < first + kWays; ++place) {
      if (HashAt(place) == 0) return place;
      const auto its = worth(place);
      if (its.has_value() && (!least.has_value() || *its < *least)) least = its, chosen = place;
    }
    return chosen;
  }

  // The place of the entry, which is a new one if there was none; kNone if there is no room for it.
  template <class Worth>
  std::size_t FindOrPut(std::uint64_t hash, Worth&& worth) {
    std::size_t place = Find(hash);
    if (place != kNone) return place;
    place = RoomFor(hash, worth);
    if (place == kNone) return kNone;
    Put(place, hash);
    entries_[place] = Entry();
    return place;
  }

  // The entry at the place has that hash from now on. REQUIRES: RoomFor(hash) gave the place.
  void Put(std::size_t place, std::uint64_t hash) {
    const bool was = HashAt(place) != 0;
    sets_[place / kWays].hashes[place % kWays].store(hash, std::memory_order_relaxed);
    if (was != (hash != 0)) used_.fetch_add(was ? SIZE_MAX : 1, std::memory_order_relaxed);
  }
  void Remove(std::size_t place) { Put(place, 0); }

 private:
  static constexpr std::size_t kSetBytes = kWays * 8 + (std::is_empty_v<Beside> ? 0 : sizeof(Beside));

  struct alignas(std::min<std::size_t>(std::bit_ceil(kSetBytes), 64)) HashSet {
    std::array<std::atomic<std::uint64_t>, kWays> hashes{};    // 0: free
    [[no_unique_address]] Beside beside{};
  };
  static_assert(sizeof(HashSet) == std::bit_ceil(kSetBytes));

  std::vector<HashSet> sets_;
  Entry* const entries_;           // by place
  mutable std::vector<char> begun_;    // by set: its entries are constructed
  unsigned shift_ = 64u - static_cast<unsigned>(std::countr_zero(sets_.size()));
  std::atomic<std::size_t> used_{0};
};

}    // namespace dthrottle
