// Places: how many of each tag are taken at once, on this host (gauges.h has those of other hosts). A rule with
// `in_flight` has so many; a question that enters takes one of each tag that is under such a rule, and its connection
// keeps it until it gives it back or ends.
//
// Places live as long as connections, so they are kept in the memory of the process: where that is killed, all
// connections are gone and all places are free. A tag without a place that is taken takes no room here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/side_table.h"

namespace dthrottle {

struct InFlightCounts {
  std::uint64_t taken = 0;      // now
  std::uint64_t tags = 0;       // of which some are taken
  std::uint64_t entered = 0;    // taken since the start
  std::uint64_t busy = 0;       // refused because all were taken
  std::uint64_t crowded = 0;    // refused because places of too many tags were taken
  std::uint64_t taken_back = 0;    // by closing connections, because this host's part of a limit has become smaller
  std::uint64_t heard = 0;      // tags and peers that have taken some of them
};

// Guarded by the lock of the tag's shard, as every SideTable.
class InFlight {
 public:
  static constexpr std::size_t kTags = std::size_t{1} << 16;    // of which places can be taken at once

  InFlight() : table_(kTags) {}

  std::uint32_t taken(std::uint64_t hash) const {
    const std::size_t at = table_.Find(hash);
    return at == table_.kNone ? 0 : table_[at];
  }

  // Whether `n` of `most` are free.
  bool Has(std::uint64_t hash, std::uint32_t most, std::uint32_t n = 1) {
    if (const std::size_t at = table_.Find(hash); at != table_.kNone) return std::uint64_t{table_[at]} + n <= most;
    return most >= n && RoomFor(hash) != table_.kNone;
  }

  // Takes `n` places, however many are taken. False: there is no room for another tag.
  bool Take(std::uint64_t hash, std::uint32_t n = 1) {
    std::size_t at = table_.Find(hash);
    if (at == table_.kNone) {
      if (at = RoomFor(hash); at == table_.kNone) return false;
      table_.Put(at, hash);
      table_[at] = 0;
    }
    table_[at] += n;
    Add(entered_, n);
    return true;
  }

  // Gives back `n` places that Take has taken.
  void Give(std::uint64_t hash, std::uint32_t n = 1) {
    const std::size_t at = table_.Find(hash);
    if (at == table_.kNone) return;
    const std::uint32_t given = std::min(table_[at], n);
    Add(left_, given);
    if ((table_[at] -= given) == 0) table_.Remove(at);
  }

  void CountBusy() { Add(busy_); }
  void CountTakenBack(std::uint64_t n) { Add(taken_back_, n); }

  InFlightCounts counts() const {
    const std::uint64_t left = Read(left_), entered = Read(entered_);    // in this order, or less than none are taken
    return {entered - left, table_.used(), entered, Read(busy_), Read(crowded_), Read(taken_back_)};
  }

 private:
  static constexpr std::size_t kWays = 8;
  using Table = SideTable<std::uint32_t, kWays>;
  using Count = std::atomic<std::uint64_t>;    // by threads that have different shards

  static void Add(Count& count, std::uint64_t n = 1) { count.fetch_add(n, std::memory_order_relaxed); }
  static std::uint64_t Read(const Count& count) { return count.load(std::memory_order_relaxed); }

  std::size_t RoomFor(std::uint64_t hash) {
    const std::size_t at = table_.RoomFor(hash, [](std::size_t) { return std::optional<int>(); });
    if (at == table_.kNone) Add(crowded_);
    return at;
  }

  Table table_;
  Count entered_{0}, left_{0}, busy_{0}, crowded_{0}, taken_back_{0};
};

}    // namespace dthrottle
