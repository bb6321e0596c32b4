// Looking up, the half of the table that every decision goes through. Not in table.h, because only a few callers cannot
// afford a call.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <thread>

#include "bucket/table_group.h"

namespace dthrottle {

inline std::uint16_t Fingerprint(std::uint64_t hash) {
  const auto bits = static_cast<std::uint16_t>(hash >> 32);
  return bits < kFingerprintMin ? static_cast<std::uint16_t>(bits + kFingerprintMin) : bits;
}

// Maps 32 uniform bits to [0, n).
inline std::size_t Scale(std::uint32_t bits, std::size_t n) {
  return (std::uint64_t{bits} * n) >> 32;
}

// Most tags have 8 to 16 bytes: two words, which may overlap, without a call.
inline bool SameBytes(const char* a, const char* b, std::size_t n) {
  if (n < 8 || n > 16) return std::memcmp(a, b, n) == 0;
  std::uint64_t a0, a1, b0, b1;
  std::memcpy(&a0, a, 8);
  std::memcpy(&b0, b, 8);
  std::memcpy(&a1, a + n - 8, 8);
  std::memcpy(&b1, b + n - 8, 8);
  return ((a0 ^ b0) | (a1 ^ b1)) == 0;
}

// What std::memcpy does, fast for tags.
inline void CopyBytes(char* to, const char* from, std::size_t n) {
  if (n < 8 || n > 16) {
    if (n != 0) std::memcpy(to, from, n);
    return;
  }
  std::uint64_t low, high;
  std::memcpy(&low, from, 8);
  std::memcpy(&high, from + n - 8, 8);
  std::memcpy(to, &low, 8);
  std::memcpy(to + n - 8, &high, 8);
}

inline Table::Header& Table::header() const {
  return *reinterpret_cast<Header*>(region_.data());
}

inline Table::Group& Table::group(std::size_t index) const {
  return *reinterpret_cast<Group*>(region_.data() + Header::kBytes + index * sizeof(Group));
}

inline std::size_t Table::IndexOf(const void* within_group) const {
  const auto offset = static_cast<const std::byte*>(within_group) - (region_.data() + Header::kBytes);
  return static_cast<std::size_t>(offset) / sizeof(Group);
}

inline std::size_t Table::Primary(std::uint64_t hash) const {
  return ShardOf(hash) * groups_per_shard_ + Scale(static_cast<std::uint32_t>(hash), groups_per_shard_);
}

inline std::size_t Table::Secondary(std::uint64_t hash) const {
  const auto bits = static_cast<std::uint32_t>((hash * 0x9e3779b97f4a7c15) >> 32);
  const std::size_t second = ShardOf(hash) * groups_per_shard_ + Scale(bits, groups_per_shard_);
  if (second != Primary(hash)) return second;
  return (second + 1) % groups_per_shard_ + ShardOf(hash) * groups_per_shard_;
}

// With one thread there is nobody to lock out, and an atomic exchange would keep look-ups from overlapping.
inline void Table::Lock(std::size_t shard) {
  constexpr int kSpins = 1000;    // longer than any shard is held by a thread that runs
  if (!shared_) return;
  for (int spins = 0; shards_[shard].locked.exchange(true, std::memory_order_acquire); ++spins) {
    if (spins >= kSpins) std::this_thread::yield();    // the holder may need this core
  }
}

inline void Table::Unlock(std::size_t shard) {
  if (shared_) shards_[shard].locked.store(false, std::memory_order_release);
}

// ---- Looking up ----

[[gnu::always_inline]] inline Table::Probe Table::Seek(const Tag& tag) const {
  const std::uint64_t hash = Hash(tag);
  return {hash, &group(Primary(hash)), -1};
}

inline Table::Probe Table::Aim(const Tag& tag) const {
  const Probe probe = Seek(tag);
  __builtin_prefetch(probe.first->directory);
  return probe;
}

// Reads the directory without the lock. What it reads may be changing; it is only a hint where to look soon.
inline void Table::Approach(Probe& probe, bool with_waste) const {
#if defined(__SANITIZE_THREAD__)
  return;    // a race by intent, which the thread sanitizer cannot be told to pass over
#endif
  const Group& g = *probe.first;
  const std::uint32_t matches = Match(g.directory, Fingerprint(probe.hash));
  if (matches == 0 && g.spilled != 0) __builtin_prefetch(group(Secondary(probe.hash)).directory);
  // A tag that is not there is likely to be put into the first free cell.
  const std::uint32_t cells = matches != 0 ? matches : Match(g.directory, kFree);
  if (cells == 0) return;
  const int cell = std::countr_zero(cells);
  if (matches != 0) probe.cell = cell;
  __builtin_prefetch(&g.cells[cell]);
  if (with_waste) __builtin_prefetch(&g.waste[cell]);
}

// A prefetch first waits for its address to be translated. Some are issued at once, so that their page walks overlap;
// of too many at once the processor drops some. None runs too far ahead: directories lie 1 KiB apart, so few of them
// fit into a first-level cache. A few tags have no work between them to hide memory behind, and are looked up at once.
template <class TagOf, class Use>
inline void Table::ForEach(std::size_t n, bool with_waste, TagOf&& tag_of, Use&& use) const {
  constexpr std::size_t kAtOnce = 8, kNear = 2 * kAtOnce, kFar = 4 * kAtOnce, kRing = 64;
  static_assert(kRing >= kFar + kAtOnce && kRing % kAtOnce == 0);
  std::array<Probe, kRing> probes;
  const bool few = n <= kAtOnce;
  const std::size_t near = few ? 0 : kNear, far = few ? 0 : kFar;
  const auto batch = [&](std::size_t begin) {
    const std::size_t size = begin < n ? std::min(kAtOnce, n - begin) : 0;
    return std::span(probes).subspan(begin % kRing, size);
  };
  for (std::size_t at = 0; at < n + far; at += kAtOnce) {
    std::size_t i = at;
    for (Probe& probe : batch(at)) probe = Seek(tag_of(i++));
    for (const Probe& probe : batch(at)) __builtin_prefetch(probe.first->directory);
    if (at < far - near) continue;
    for (Probe& probe : batch(at - (far - near))) Approach(probe, with_waste);
    if (at < far) continue;
    i = at - far;
    for (const Probe& probe : batch(at - far)) use(i++, probe);
  }
}

inline bool Table::Holds(const Group& g, std::size_t i, const Tag& tag) {
  const Cell& cell = g.cells[i];
  return cell.slot.tag_bytes == tag.bytes.size() && (cell.slot.is_digest != 0) == tag.is_digest &&
         SameBytes(cell.tag, tag.bytes.data(), tag.bytes.size());
}

inline Slot* Table::FindIn(Group& g, std::uint16_t fingerprint, const Tag& tag) const {
  for (std::uint32_t matches = Match(g.directory, fingerprint); matches != 0; matches &= matches - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(matches));
    if (Holds(g, i, tag)) return &g.cells[i].slot;
  }
  return nullptr;
}

inline void Table::Refresh(Group& g, std::size_t shard, Instant now) {
  if (g.generation != usable_) [[unlikely]]
    BringUpToDate(g, shard, now);
}

inline Table::Locked::Locked(Table& table, std::uint64_t hash)
    : table_(table), hash_(hash), shard_(table.ShardOf(hash)) {}

inline Table::Shard::Shard(Table& table, std::uint64_t hash) : Locked(table, hash) {
  table_.Lock(shard_);
}

inline Table::Shard::~Shard() {
  table_.Unlock(shard_);
}

template <class HashOf>
inline Table::Shards::Shards(Table& table, std::size_t n, HashOf&& hash_of) : table_(table) {
  if (!table.shared_) return;
  for (std::size_t i = 0; i < n; ++i) set_ |= std::uint64_t{1} << table.ShardOf(hash_of(i));
  for (std::uint64_t left = set_; left != 0; left &= left - 1) {
    table.Lock(static_cast<std::size_t>(std::countr_zero(left)));
  }
}

inline Table::Shards::~Shards() {
  for (std::uint64_t left = set_; left != 0; left &= left - 1) {
    table_.Unlock(static_cast<std::size_t>(std::countr_zero(left)));
  }
}

inline Slot* Table::Locked::Find(const Tag& tag, const Probe& probe, Instant now) {
  Group& g = *probe.first;
  if (g.generation != table_.usable_) [[unlikely]]
    return Find(tag, now);
  const std::uint16_t fingerprint = Fingerprint(hash_);
  if (probe.cell >= 0) {
    const auto i = static_cast<std::size_t>(probe.cell);
    if (g.directory[i] == fingerprint && table_.Holds(g, i, tag)) return &g.cells[i].slot;
  } else if (Match(g.directory, fingerprint) == 0 && g.spilled == 0) {
    return nullptr;
  }
  return Find(tag, now);
}

inline Waste& Table::Locked::waste(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  return g.waste[g.CellOf(slot)];
}

inline void Table::Locked::Refused(Slot* slot) {
  Group& g = table_.group(table_.IndexOf(slot));
  g.merits.Refused(g.CellOf(slot));
}

}    // namespace dthrottle
