// Which part of a limit's rate this host has, for limits that hosts divide among them (share = "capacity").
//
// A host with the part f of a rate refills f times as fast and holds f times the burst. In ticks that is an interval
// 1/f times as long and the same depth. Where f of the burst is less than a token, the bucket holds one all the same, or
// nobody would ever be served; it is then as deep as an interval. A bucket keeps its tokens when its part becomes another
// one (Division::SetPart): what a host has gathered under a small part buys no more under a large one.
//
// Most tags have the usual part, one of N hosts as a rule. A tag that takes part in the exchange of capacity has an
// entry, under the key that all hosts have for the tag. All parts are lent until an instant (the lease of capacity/);
// after it, the reserve is what is left.
//
// Threads: to read takes the lock of one of the table's shards, which a decision holds anyway, and to write takes all of
// them. So queries pay for no lock of this. The lock of its tag's shard is enough to write what an entry holds.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/side_table.h"
#include "base/siphash.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "capacity/capacity_exchange.h"

namespace dthrottle {

constexpr double PartOfWhole(Parts parts) {
  return static_cast<double>(parts) / static_cast<double>(kWhole);
}

// The bucket of a host with `part` of a limit, 0 to 1.
Shape PartOf(const Shape& whole, double part);

class PartTable {
 public:
  // What tags without a part of their own have, until when, and what every tag has from then on. 1 and 1: a host
  // without others.
  struct Lent {
    double usual = 1, reserve = 1;
    BootInstant until = BootInstant::max();

    friend bool operator==(const Lent&, const Lent&) = default;
  };

  static constexpr double kUsual = -1;

  struct Entry {
    bool named = false;    // who owns the limiter knows which tag it is
    double part = kUsual;
    std::uint64_t arrivals = 0;    // tokens asked for since the entry came, whatever the verdict

    // Two tags with one key are counted as one, perhaps by two threads at once: some may be lost.
    void CountArrivals(std::uint64_t n) {
      std::atomic_ref<std::uint64_t> count(arrivals);
      count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  };

  // Makes room for that many entries, and forgets those that there are. `hash` is a secret: everybody can compute keys,
  // so tags could be chosen to fill one corner.
  void Reset(std::size_t entries_max, const SipKey& hash);

  // Null if there is none.
  Entry* Find(const CapacityKey& key) {
    const std::size_t place = PlaceOf(key);
    return place != kNone ? &(*entries_)[place] : nullptr;
  }

  // The entry of the key, new if there was none; null if there is no room.
  Entry* Add(const CapacityKey& key);
  void Remove(const CapacityKey& key);

  // All entries have the usual part.
  void ForgetParts();

  void Lend(const Lent& lent) { lent_ = lent; }
  const Lent& lent() const { return lent_; }

  // What an entry's part comes to while parts are lent.
  double PartWhileLent(double part) const { return part != kUsual ? part : lent_.usual; }

  // The part of a tag that has this entry, or none.
  double PartNow(const Entry* entry, BootInstant now) const {
    if (now >= lent_.until) return lent_.reserve;
    return PartWhileLent(entry != nullptr ? entry->part : kUsual);
  }

  std::size_t size() const { return entries_.has_value() ? entries_->used() : 0; }

 private:
  static constexpr std::size_t kWays = 4;
  using Entries = SideTable<Entry, kWays>;
  static constexpr std::size_t kNone = Entries::kNone;

  // An entry has the first of two hashes, or, where the set of that is half full and fuller, the second.
  std::array<std::uint64_t, 2> Hashes(const CapacityKey& key) const {
    static_assert(sizeof key == 16);
    const std::uint64_t hash = SipHash<1, 3>(hash_, {reinterpret_cast<const char*>(&key), sizeof key}) | 1;
    return {hash, std::rotl(hash, 32)};
  }
  std::size_t PlaceOf(const CapacityKey& key) const {
    if (size() == 0) return kNone;
    const auto [first, second] = Hashes(key);
    const std::size_t place = entries_->Find(first);
    return place != kNone || seconds_ == 0 ? place : entries_->Find(second);
  }

  Lent lent_;
  SipKey hash_{};
  std::optional<Entries> entries_;
  std::size_t size_max_ = 0, seconds_ = 0;    // seconds_: entries that have the second hash
};

}    // namespace dthrottle
