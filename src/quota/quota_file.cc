#include "quota/quota_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/quota_word.h"

namespace dthrottle {

namespace {

constexpr std::uint64_t kQuotaMagic = 0x31'61'74'6f'75'71'74'64;    // "dtquota1"

void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}    // namespace

struct QuotaFile::Header {
  std::uint64_t magic;    // stored last
  std::uint64_t counter;
  std::array<std::byte, 16> boot_id;
  std::uint64_t used_end;    // one more than used_end(), in that boot; 0: a program that did not say
};

QuotaFile::Header& QuotaFile::header() const {
  return *reinterpret_cast<Header*>(region_.data());
}

bool QuotaFile::IsQuotaFile(std::string_view head) {
  std::uint64_t magic = 0;
  std::memcpy(&magic, head.data(), std::min(head.size(), sizeof magic));
  return magic == kQuotaMagic || std::all_of(head.begin(), head.end(), [](char c) { return c == 0; });
}

bool QuotaFile::IsNew(std::span<const std::byte> region) {
  return reinterpret_cast<const Header*>(region.data())->magic != kQuotaMagic;
}

// Slots are taken from the first on, so what is used lies together.
std::string QuotaFile::Pack(std::span<const std::byte> region) {
  std::size_t slots = region.size() / kSlotBytes;
  const auto is_free = [&](std::size_t i) {
    return reinterpret_cast<const QuotaSlot*>(region.data() + i * kSlotBytes)->kind == QuotaSlot::kFree;
  };
  while (slots > 1 && is_free(slots - 1)) --slots;
  return {reinterpret_cast<const char*>(region.data()), slots * kSlotBytes};
}

std::size_t QuotaFile::Unpack(std::string packed, std::span<std::byte> region) {
  if (packed.size() < kSlotBytes || IsNew(std::as_bytes(std::span(packed)))) return 0;
  const std::size_t left = MoveInto(std::as_writable_bytes(std::span(packed)), region.size());
  std::memset(packed.data() + offsetof(Header, magic), 0, sizeof Header::magic);
  std::memcpy(region.data(), packed.data(), std::min(packed.size(), region.size()));
  Store(reinterpret_cast<Header*>(region.data())->magic, kQuotaMagic);
  return left;
}

QuotaFile::QuotaFile(std::span<std::byte> region, const std::array<std::byte, 16>& boot_id, std::uint64_t fresh)
    : region_(region), boot_id_(boot_id), slots_(region.size() / kSlotBytes - 1) {
  static_assert(sizeof(QuotaSlot) <= kSlotBytes && sizeof(Header) <= kSlotBytes);
  DT_CHECK(region.size() >= 2 * kSlotBytes);
  const Header& its = header();
  const bool known = its.magic == kQuotaMagic && its.counter <= kCounterMask;
  counter_before_ = known ? its.counter : 0;
  const bool same_boot = known && its.boot_id == boot_id && its.counter != 0;
  counter_ = same_boot ? its.counter : std::max<std::uint64_t>(fresh & kCounterMask, 1);
  const bool says = same_boot && its.used_end != 0;
  for (std::size_t i = says ? std::min<std::size_t>(its.used_end - 1, slots_) : slots_; i-- > 0;) {
    if (known && IsWhole(slot(i), slots_)) {
      used_end_ = std::max(used_end_, i + 1);
      continue;
    }
    if (slot(i).kind != QuotaSlot::kFree) SetKind(slot(i), QuotaSlot::kFree);
    if (i < used_end_) free_.push_back(static_cast<std::uint32_t>(i));
  }
  if (!known) Begin();
}

void QuotaFile::Begin() {
  Header& its = header();
  Store(its.used_end, used_end_ + 1);
  Store(its.counter, counter_);
  its.boot_id = boot_id_;
  Store(its.magic, kQuotaMagic);
}

QuotaSlot& QuotaFile::SlotOf(std::span<std::byte> region, std::size_t i) {
  return *reinterpret_cast<QuotaSlot*>(region.data() + (1 + i) * kSlotBytes);
}

QuotaSlot& QuotaFile::slot(std::size_t i) const {
  return SlotOf(region_, i);
}

// The region may hold anything, so every field is looked at.
bool QuotaFile::IsWhole(const QuotaSlot& s, std::size_t slots) {
  if (s.period > kQuotaPeriodMax || s.until > kQuotaPeriodMax) return false;
  if (s.kind == QuotaSlot::kTag) {
    return s.own.taken <= kCountMax && s.own.back <= s.own.taken && s.own.is_digest <= 1 &&
           (s.own.is_digest == 0 || s.own.size == kDigestBytes);
  }
  if (s.kind != QuotaSlot::kCounted || s.others.tag >= slots || s.others.size > QuotaSlot::kCounts) return false;
  const auto& counts = s.others.counts;
  return std::all_of(counts.begin(), counts.begin() + s.others.size, [](const QuotaCount& count) {
    return count.counter <= kCounterMask && count.taken <= kCountMax && count.back <= count.taken;
  });
}

// The slots of a region while what is behind the first `fit` of them moves there.
class QuotaFile::Moving {
 public:
  Moving(std::span<std::byte> region, std::size_t fit)
      : region_(region), slots_(region.size() / kSlotBytes - 1), fit_(fit), now_at_(slots_, kGone) {
    for (std::uint32_t i = 0; i < slots_; ++i) {
      const QuotaSlot& slot = SlotOf(region_, i);
      const bool is_whole = IsWhole(slot, slots_);
      if (is_whole && slot.kind == QuotaSlot::kTag) {
        now_at_[i] = i;
      } else if (i < fit_) {
        (is_whole ? of_others_ : free_).push_back(i);
      }
    }
  }

  // Returns those that there is no room for. Peers tell again of what others have counted, so that makes room for tags.
  std::size_t MoveTags() {
    std::size_t left = 0;
    for (std::size_t i = fit_; i < slots_; ++i) {
      if (now_at_[i] == kGone) continue;
      std::vector<std::uint32_t>& from = free_.empty() ? of_others_ : free_;
      now_at_[i] = from.empty() ? kGone : Place(SlotOf(region_, i), from);
      left += now_at_[i] == kGone;
    }
    return left;
  }

  void MoveOthers() {
    for (std::size_t i = 0; i < slots_; ++i) {
      QuotaSlot& slot = SlotOf(region_, i);
      if (slot.kind != QuotaSlot::kCounted || !IsWhole(slot, slots_)) continue;
      const std::uint32_t tag = now_at_[slot.others.tag];
      if (tag == kGone) {
        SetKind(slot, QuotaSlot::kFree);
      } else if (slot.others.tag = tag; i >= fit_ && !free_.empty()) {
        const QuotaSlot its = slot;
        SetKind(slot, QuotaSlot::kFree);    // a kill loses it, rather than that it counts twice
        Place(its, free_);
      }
    }
  }

 private:
  static constexpr std::uint32_t kGone = UINT32_MAX;

  std::uint32_t Place(QuotaSlot moved, std::vector<std::uint32_t>& places) {
    const std::uint32_t to = places.back();
    places.pop_back();
    const QuotaSlot::Kind kind = std::exchange(moved.kind, QuotaSlot::kFree);
    SetKind(SlotOf(region_, to), QuotaSlot::kFree);
    SlotOf(region_, to) = moved;
    SetKind(SlotOf(region_, to), kind);
    return to;
  }

  const std::span<std::byte> region_;
  const std::size_t slots_, fit_;
  std::vector<std::uint32_t> now_at_;             // by slot: where its tag is; kGone: it has none
  std::vector<std::uint32_t> free_, of_others_;    // of the first `fit`
};

std::size_t QuotaFile::MoveInto(std::span<std::byte> region, std::size_t bytes) {
  if (region.size() <= bytes || IsNew(region)) return 0;
  Moving moving(region, bytes / kSlotBytes - 1);
  const std::size_t left = moving.MoveTags();
  moving.MoveOthers();
  return left;
}

std::optional<std::uint32_t> QuotaFile::Take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (used_end_ == slots_) return std::nullopt;
  Store(header().used_end, used_end_ + 2);    // before the slot is used
  return static_cast<std::uint32_t>(used_end_++);
}

void QuotaFile::Free(std::uint32_t freed) {
  SetKind(slot(freed), QuotaSlot::kFree);
  const std::lock_guard lock(mutex_);
  free_.push_back(freed);
}

void QuotaFile::SetKind(QuotaSlot& slot, QuotaSlot::Kind kind) {
  std::atomic_ref(slot.kind).store(kind, std::memory_order_release);
}

}    // namespace dthrottle
