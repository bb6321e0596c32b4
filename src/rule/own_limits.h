// The limits that tags name themselves (own_limit.h), as limits of a rulebook. It numbers them behind all others as it
// meets them. What decides queries finds the number in the tag's slot, as it does any limit's.
//
// Places are given back all at once: BeginAnew opens another half of them, into which the limits that buckets still have
// are moved one by one, and EndOld empties the half before. So a number means one limit as long as any slot has it.
//
// What peers name takes part of the places, and one peer part of that, so no peer can use them up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "bucket/forget.h"
#include "rule/own_limit.h"
#include "rule/rule.h"

namespace dthrottle {

class Source;
struct Limit;

// Any thread, but for the last group.
class OwnLimits {
 public:
  // Limits that differ, of all rules. More are not taken, so that numbers that somebody chooses cannot fill the memory.
  static constexpr std::size_t kHalf = 4096, kRoom = 2 * kHalf, kMost = kHalf / 4 * 3;
  // Places that limits may take which only peers have named. A peer may have as many of these as are left.
  static constexpr std::size_t kPeersMost = kMost / 4 * 3;

  // Limits are written to the kRoom that begin at `limits`, which must outlive this object. Each is one of `parts`
  // equal parts of what a tag names.
  OwnLimits(Limit* limits, std::uint32_t parts) : limits_(limits), parts_(parts), places_(new Place[kRoom]()) {}

  // The place in `limits` of the limit under a rule, which is `its` but for burst and rate. None, and counted: there is
  // no room. REQUIRES: limit.can_be(); a rule comes with the same limit each time.
  std::optional<std::size_t> Find(const OwnLimit& limit, const Rule& rule, const Limit& its, Source source);

  // Tokens a second. REQUIRES: Find has returned the place.
  double rate(std::size_t place) const;

  std::size_t used() const;
  std::uint64_t crowded() const { return crowded_.load(std::memory_order_relaxed); }

  // ---- For one thread, the owner's ----

  // Many places are taken since buckets were asked last which of them they need, or some limit found none.
  bool wants_room() const;
  // Within Table::Exclusively; every slot has its limit found anew before EndOld. REQUIRES: no slot has one of the half
  // before.
  void BeginAnew();
  void EndOld();

 private:
  static constexpr std::uint16_t kHere = 256;    // no Teller: it was asked for here

  struct Place {
    std::atomic<std::uint64_t> key;         // 0: it is free
    std::atomic<std::uint16_t> told_by;    // a Teller, or kHere
  };

  std::optional<std::size_t> Known(std::uint64_t key, std::size_t half) const;
  std::optional<std::size_t> FindInUse(std::uint64_t key, Source source);
  bool HasRoomFor(Source source) const;

  Limit* const limits_;
  const std::uint32_t parts_;
  const std::unique_ptr<Place[]> places_;
  mutable std::mutex mutex_;    // for what follows, and filling a place
  std::atomic<std::size_t> half_{0};
  std::size_t used_ = 0, unmoved_ = 0;    // of this half, and of the one before
  std::array<std::uint16_t, 256> told_{};    // by Teller, of this half
  std::size_t told_all_ = 0;
  std::size_t sweep_at_ = kPeersMost;    // that are used
  bool turned_away_ = false;             // somebody, since BeginAnew
  std::atomic<std::uint64_t> crowded_{0};
};

}    // namespace dthrottle
