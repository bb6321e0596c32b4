// The counts of quotas: one flat region of fixed size, without pointers, so that it can be a file that outlives a reboot.
//
// The region is a header and then slots of 512 bytes. A slot is free, or has a tag with what this host has counted of
// it, or has what other counters have counted of a tag. Slots lie within pages, so a power failure tears none. Stores are
// ordered so that a process killed between any two of them leaves every slot whole: the kind of a slot is written last.
// Where slots are found is the memory of Quotas, which reads those in use when it begins. Slots are taken from the first
// on, and the header says how far that has come in this boot, so a large file with few tags begins at once. After a boot
// all slots are read: a power failure may have taken the header's word alone. A file that is made longer keeps all slots,
// and one that is made shorter those that it has room for, of tags first (MoveInto).
//
// A host counts under a number of its own, which it keeps until the next boot: what a power failure has taken from the
// file peers still know, as the count of a number that is nobody's any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tag.h"

namespace dthrottle {

// What another counter has counted of a tag.
struct QuotaCount {
  std::uint64_t counter = 0, taken = 0, back = 0;

  std::uint64_t net() const { return taken - back; }

  // Tokens are added; the counter stays as it is.
  QuotaCount& operator+=(const QuotaCount& more) {
    taken += more.taken;
    back += more.back;
    return *this;
  }
  QuotaCount& operator-=(const QuotaCount& less) {
    taken -= less.taken;
    back -= less.back;
    return *this;
  }
};

struct QuotaSlot {
  static constexpr std::size_t kCounts = 20;
  enum Kind : std::uint32_t { kFree, kTag, kCounted };
  struct OfTag {
    std::uint64_t taken, back;    // here
    std::uint64_t forgiven;       // of what others have counted
    std::uint8_t size, is_digest;
    std::array<char, kTagBytesMax> bytes;
    // With latest_min: a boot has taken the counts along to a later period before that one; they have begun such a period.
    // After the first the next boot does not believe in latest_min, after the second no program does.
    std::uint8_t was_carried, has_begun;
    std::uint64_t ends_ns, ends_counter;    // when the period ends by the core's clock, and the host's number in that boot
  };
  struct OfOthers {
    std::uint32_t tag, size;    // the slot of the tag; counts
    std::array<QuotaCount, kCounts> counts;
  };

  Kind kind;
  // In the slot of a tag the latest period that the clock was set back from while the counts were of it: when it began,
  // minutes since 1970; 0: none.
  std::uint32_t latest_min;
  std::uint64_t period, until;    // of the counts: when it began and ends, seconds since 1970
  union {
    OfTag own;
    OfOthers others;
  };

  Tag tag() const { return {{own.bytes.data(), own.size}, own.is_digest != 0}; }
};

class QuotaFile {
 public:
  static constexpr std::size_t kSlotBytes = 512;
  static constexpr std::uint64_t kCountMax = std::uint64_t{1} << 40;       // tokens
  static constexpr std::uint64_t kCounterMask = (std::uint64_t{1} << 56) - 1;

  // Whether a file that begins so was written by this class, or holds nothing yet.
  static bool IsQuotaFile(std::string_view head);

  // Moves what such a region holds into its first `bytes`, so that it can be cut off there. Returns the tags that there
  // was no room for. Killed in the middle, it leaves what it had yet to move where it was.
  static std::size_t MoveInto(std::span<std::byte> region, std::size_t bytes);

  // Whether nothing has been counted in a region yet.
  static bool IsNew(std::span<const std::byte> region);

  // Pack returns the used slots of a region. Unpack puts them into a new one, and returns the tags that there was no room
  // for. Killed in the middle, it leaves the region new.
  static std::string Pack(std::span<const std::byte> region);
  static std::size_t Unpack(std::string packed, std::span<std::byte> region);

  // Takes over what the region holds. `fresh` is random. Slots that cannot be ours are free. The region must outlive it.
  // REQUIRES: the region is aligned to 64 bytes and has room for some slots.
  QuotaFile(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh);

  // Under which this host counts from now on, and did when the region was written; 0: it counted nothing.
  std::uint64_t counter() const { return counter_; }
  std::uint64_t counter_before() const { return counter_before_; }
  // What counter_before() has counted is an other counter's now.
  void Begin();

  std::size_t slots() const { return slots_; }
  // All slots from this one on are free.
  std::size_t used_end() const { return used_end_; }
  QuotaSlot& slot(std::size_t i) const;

  // A free slot; none: there is none. It is the caller's to fill, and to set its kind last. Any thread, both.
  std::optional<std::uint32_t> Take();
  void Free(std::uint32_t slot);
  static void SetKind(QuotaSlot& slot, QuotaSlot::Kind kind);

 private:
  struct Header;
  class Moving;
  static bool IsWhole(const QuotaSlot& slot, std::size_t slots);
  static QuotaSlot& SlotOf(std::span<std::byte> region, std::size_t i);
  Header& header() const;

  const std::span<std::byte> region_;
  const std::array<std::byte, 16> boot_id_;
  const std::size_t slots_;
  std::uint64_t counter_ = 0, counter_before_ = 0;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;    // before used_end_
  std::size_t used_end_ = 0;
};

}    // namespace dthrottle
