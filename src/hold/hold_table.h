// The records of holds: one flat region of fixed size, without pointers, so that it can be a file that outlives us.
//
// The region is a header and then records of 512 bytes, twice as many as holds may be open at once. The other half
// remembers what became of holds that have ended, so that a repeated settlement is answered as the first was: where no
// record is free, the one that ended first is used anew. So as many as may be open, at least, are remembered.
//
// A record never moves, because its number says where it is. So a region for fewer holds keeps the records up to the last
// open one, and while more are open than may be, none is added.
//
// Stores are ordered so that a process killed between any two of them leaves every record whole: the state is written
// last, and a record that is being rewritten says so first. Which records are free, and when the next hold runs out,
// is found when the region is opened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tag.h"
#include "base/time.h"
#include "hold/payment.h"

namespace dthrottle {

// Names a hold for as long as it is remembered. No other hold of the region ever has the same.
using HoldId = std::uint64_t;

inline constexpr std::size_t kHoldTagsMax = 16;
inline constexpr std::size_t kHoldTagBytesMax = 340;    // of the tags of a hold that its record has, together

enum class HoldState : std::uint32_t { kNone, kOpen, kCommitted, kReleased, kExpired };

// What Payment has, for an open hold.
struct HoldTaken {
  Instant at;
  std::array<std::uint16_t, kHoldTagsMax> with;          // of each tag
  std::array<std::uint8_t, kHoldTagsMax> with_unpaid;    // of each tag
  std::uint16_t unpaid;                                  // a bit for each tag that is
};

struct HoldRecord {
  HoldId id;
  HoldState state;      // changed by HoldTable
  std::uint16_t tags;
  std::uint16_t bound;    // to a connection: it ends with the process that has that
  Instant until;
  std::array<Cost, kHoldTagsMax> held;      // what each tag has paid
  union {
    HoldTaken taken;                            // while it is open
    std::array<Cost, kHoldTagsMax> actual;      // what each tag has cost, once it has ended
  };
  std::uint16_t digests;                    // a bit for each tag that is one
  std::array<std::uint8_t, kHoldTagsMax> sizes;
  std::array<char, kHoldTagBytesMax> bytes;    // of the tags, one behind the other; no bytes of one without room

  // What a tag of an open hold has paid. REQUIRES: the tag is that of ForEachTag.
  Payment PaymentOf(std::size_t i, const Tag& tag, const OverLongTag* over_long) const {
    return {{tag, held[i], over_long}, taken.at, taken.with[i], (taken.unpaid >> i & 1) != 0, taken.with_unpaid[i]};
  }

  // Calls use(i, tag) for each tag; one for which there was no room has no bytes.
  template <class Use>
  void ForEachTag(Use&& use) const {
    for (std::size_t i = 0, at = 0; i < tags; at += sizes[i], ++i) {
      use(i, Tag{{bytes.data() + at, sizes[i]}, (digests >> i & 1) != 0});
    }
  }
};

class HoldTable {
 public:
  static constexpr std::size_t kHoldsMax = 1 << 18;

  static constexpr std::size_t RegionBytes(std::size_t holds) { return kRecordBytes * (1 + 2 * holds); }

  // Whether a file that begins so was written by this class, or holds nothing yet.
  static bool IsHoldTable(std::string_view head);

  // The bytes that a region has to keep of what it holds, up to the last hold that is open in this boot.
  static std::size_t BytesInUse(std::span<const std::byte> region, const std::array<std::byte, 16>& boot_id);

  // Takes over what the region holds if it is of this boot; else begins anew, with numbers from `fresh` on, which is
  // random. Records that cannot be ours are dropped. The region must outlive it. REQUIRES: the region is aligned to 64
  // bytes and has RegionBytes(holds) of them, or more; 0 < holds <= kHoldsMax.
  HoldTable(std::span<std::byte> region, std::size_t holds, const std::array<std::byte, 16>& boot_id,
            std::uint64_t fresh);

  // Records a hold, with as many of its tags, in order, as there is room for. REQUIRES: open() < holds(); 1 to
  // kHoldTagsMax payments of one time.
  HoldId Add(std::span<const Payment> paid, Instant until, bool bound);

  // The record of a hold; null: it is forgotten, or has never been.
  const HoldRecord* Find(HoldId id) const;
  bool IsOpen(HoldId id) const;

  // Ends an open hold. `actual` is what each tag has cost. From now on a killed process finds it ended. REQUIRES: the
  // record is of an open hold.
  void End(const HoldRecord& record, HoldState state, std::span<const Cost> actual);

  std::size_t holds() const { return holds_; }    // that may be open at once; fewer than open() after they were more
  std::size_t open() const { return open_; }

  // When the next open hold runs out; Instant::max(): there is none.
  Instant next() const { return ends_.empty() ? Instant::max() : ends_.begin()->first; }
  // That hold. REQUIRES: there is one.
  HoldId first() const { return ends_.begin()->second; }

  // Calls use(record) for each open hold; it may end the hold.
  template <class Use>
  void ForEachOpen(Use&& use) {
    for (std::size_t i = 0; i < records_; ++i) {
      if (record(i).state == HoldState::kOpen) use(record(i));
    }
  }

 private:
  static constexpr std::size_t kRecordBytes = 512;
  struct Header;

  HoldRecord& record(std::size_t index) const;
  bool IsWhole(std::size_t index) const;
  void Restore();
  std::size_t TakeRecord();

  const std::span<std::byte> region_;
  const std::size_t holds_, records_;
  std::uint64_t next_number_ = 0;
  std::size_t open_ = 0;
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> ended_;                  // the first was first
  std::set<std::pair<Instant, HoldId>> ends_;        // of open holds
};

}    // namespace dthrottle
