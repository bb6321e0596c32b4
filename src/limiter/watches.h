// The tags whose hits other hosts should hear of before the period is over, a bounded number of them: what a bucket has
// no room for, beside the table.
//
// A watch is found by the tag's hash, in a set of eight that has one cache line of hashes. All hashes of a set are of
// one shard of the table, so that shard's lock is the set's. When all eight are taken the one that rests longest makes
// room, and if none rests there is no watch: the tag is shared by periodic reports, as under `debit`.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/tag.h"
#include "limiter/forecast.h"

namespace dthrottle {

class Watch {
 public:
  Watch(const Tag& tag, Tokens level, Tokens unreported, Instant now)
      : forecast(level, unreported, now),
        is_digest_(tag.is_digest),
        tag_bytes_(static_cast<std::uint8_t>(tag.bytes.size())) {
    std::memcpy(tag_.data(), tag.bytes.data(), tag.bytes.size());
  }

  Tag tag() const { return {std::string_view(tag_.data(), tag_bytes_), is_digest_}; }

  Forecast forecast;
  bool noted = false;    // as due

 private:
  bool is_digest_;
  std::uint8_t tag_bytes_;
  std::array<char, 255> tag_;
};

class Watches {
 public:
  static constexpr std::size_t kWays = 8;
  static constexpr std::size_t kSetsMin = 64;    // no fewer than shards of a table

  // Room for `tags`, rounded up to a power of two; memory is taken at once.
  explicit Watches(std::size_t tags)
      : sets_(std::bit_ceil(std::max(tags / kWays, kSetsMin))),
        watches_(sets_.size() * kWays),
        due_(sets_.size()),
        active_(sets_.size()) {
    shift_ = 64u - static_cast<unsigned>(std::countr_zero(sets_.size()));
  }

  // REQUIRES of these three: the shard of `hash` is locked.
  Watch* Find(std::uint64_t hash) {
    const std::size_t set = hash >> shift_;
    if (Read(sets_[set].hashes[0]) == hash && hash != 0) [[likely]]
      return &*watches_[set * kWays];
    for (std::size_t way = 1; way < kWays; ++way) {
      if (Read(sets_[set].hashes[way]) == hash && hash != 0) return &*watches_[set * kWays + way];
    }
    return nullptr;
  }
  // Null if there is no room: every watch of the set was active within `rests`. REQUIRES: Find(hash) is null.
  Watch* Add(std::uint64_t hash, const Tag& tag, Tokens level, Tokens unreported, Duration rests, Instant now);
  void Remove(Watch* watch);

  // The watch is due. Any thread, with the lock of its shard.
  void Note(const Watch* watch) { Set(due_, IndexOf(watch), true); }
  // Whether it is to be looked at again and again. Likewise.
  void SetActive(const Watch* watch, bool active) { Set(active_, IndexOf(watch), active); }

  // ---- For one thread that goes through all, without a lock ----

  std::size_t sets() const { return sets_.size(); }
  // Ways of a set that were noted since they were taken.
  std::uint8_t DueOf(std::size_t set) const { return Read(due_[set]); }
  std::uint8_t ActiveOf(std::size_t set) const { return Read(active_[set]); }
  void TakeDue(std::size_t set, std::size_t way) { Set(due_, set * kWays + way, false); }
  // 0: nothing is there. With the shard of that hash locked, Find says whether it still is.
  std::uint64_t HashAt(std::size_t set, std::size_t way) const { return Read(sets_[set].hashes[way]); }

  std::uint64_t used() const { return Read(used_); }          // now
  std::uint64_t crowded() const { return Read(crowded_); }    // times that there was no room

 private:
  struct alignas(64) HashSet {
    std::array<std::atomic<std::uint64_t>, kWays> hashes{};    // 0: free
  };

  template <class T>
  static T Read(const std::atomic<T>& value) {
    return value.load(std::memory_order_relaxed);
  }

  using Bits = std::vector<std::atomic<std::uint8_t>>;    // by set, one for each way

  static void Set(Bits& bits, std::size_t index, bool value) {
    const auto bit = static_cast<std::uint8_t>(1u << index % kWays);
    if (((Read(bits[index / kWays]) & bit) != 0) == value) return;
    if (value) {
      bits[index / kWays].fetch_or(bit, std::memory_order_relaxed);
    } else {
      bits[index / kWays].fetch_and(static_cast<std::uint8_t>(~bit), std::memory_order_relaxed);
    }
  }

  std::size_t IndexOf(const Watch* watch) const {
    const auto* first = reinterpret_cast<const std::byte*>(watches_.data());
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(watch) - first) / sizeof(watches_[0]);
  }

  std::vector<HashSet> sets_;
  std::vector<std::optional<Watch>> watches_;
  Bits due_, active_;
  unsigned shift_ = 0;
  std::atomic<std::uint64_t> used_{0}, crowded_{0};
};

}    // namespace dthrottle
