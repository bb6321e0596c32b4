// How the table lies in its region: the header, a group, and what reads and writes a group's directory.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bucket/forget.h"
#include "bucket/table.h"

namespace dthrottle {

inline constexpr std::size_t kInlineTagBytes = 16;
inline constexpr std::uint32_t kAllCells = (1u << kCellsPerGroup) - 1;

// Values of a directory. Fingerprints start above them.
inline constexpr std::uint16_t kFree = 0;
inline constexpr std::uint16_t kContinued = 1;    // belongs to the tag that starts in an earlier cell
inline constexpr std::uint16_t kFingerprintMin = 2;

// The count of spilled tags stays at this most for good: the second groups of its tags are then always visited.
inline constexpr std::uint8_t kSpilledMax = 255;

// Cells that a tag occupies.
inline std::size_t CellsFor(std::size_t tag_bytes) {
  constexpr std::size_t kCellBytes = 32;
  return tag_bytes <= kInlineTagBytes ? 1 : 1 + (tag_bytes - kInlineTagBytes + kCellBytes - 1) / kCellBytes;
}

// One bit for each cell whose directory entry is `value`.
inline std::uint32_t Match(const std::uint16_t* directory, std::uint16_t value);

struct Table::Header {
  static constexpr std::uint64_t kMagic = 0x656c74746f726874;         // "throttle"
  static constexpr std::uint64_t kMagicBegun = 0x65626f7474687264;    // of a region that is being cleared
  static constexpr std::uint32_t kVersion = 3;
  static constexpr std::size_t kBytes = 4096;

  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t generation;
  std::uint64_t region_bytes;
  TableIdentity identity;
  TableKeys keys;
  alignas(64) std::uint64_t words[kWords];    // of the table's user
};

struct Table::Cell {
  Slot slot;
  char tag[kInlineTagBytes];    // continues into the next cells
};

struct alignas(64) Table::Group {
  std::uint16_t directory[kCellsPerGroup];
  std::uint32_t dirty;    // a bit for each cell whose slot has unreported hits
  std::uint8_t generation;
  std::uint8_t spilled;    // tags that would live here and live in their second group
  Merits merits;
  Cell cells[kCellsPerGroup];
  Waste waste[kCellsPerGroup];    // of the slots

  Tag TagAt(std::size_t first) const {
    const Cell& cell = cells[first];
    return {std::string_view(cell.tag, cell.slot.tag_bytes), cell.slot.is_digest != 0};
  }
  std::size_t CellsAt(std::size_t first) const { return CellsFor(cells[first].slot.tag_bytes); }
  // One bit for each cell in which a tag begins.
  std::uint32_t Firsts() const { return kAllCells & ~Match(directory, kFree) & ~Match(directory, kContinued); }
  std::size_t CellOf(const Slot* slot) const {
    return static_cast<std::size_t>(reinterpret_cast<const Cell*>(slot) - cells);
  }
};

struct alignas(64) Table::ShardState {
  std::atomic<bool> locked{false};
  TableCounts counts;
};

inline std::uint32_t Match(const std::uint16_t* directory, std::uint16_t value) {
#ifdef __SSE2__
  const auto* line = reinterpret_cast<const __m128i*>(directory);
  const __m128i wanted = _mm_set1_epi16(static_cast<short>(value));
  const auto compare = [&](int i) { return _mm_cmpeq_epi16(_mm_load_si128(line + i), wanted); };
  static_assert(kCellsPerGroup == 24);
  const auto low = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(compare(0), compare(1))));
  const auto high = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(compare(2), _mm_setzero_si128())));
  return low | high << 16;
#else
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < kCellsPerGroup; ++i) bits |= std::uint32_t{directory[i] == value} << i;
  return bits;
#endif
}

// The first of `cells` consecutive cells that are in the mask, or kCellsPerGroup.
inline std::size_t FirstRun(std::uint32_t mask, std::size_t cells) {
  for (std::size_t i = 1; i < cells && mask != 0; ++i) mask &= mask >> 1;
  return mask == 0 ? kCellsPerGroup : static_cast<std::size_t>(std::countr_zero(mask));
}

// One bit for each of `cells` cells from `first` on.
inline std::uint32_t MaskOf(std::size_t first, std::size_t cells) {
  return ((1u << cells) - 1) << first;
}

// Keeps stores before it from being moved behind stores after it: a kill -9 then finds them in this order.
inline void StoreBarrier() {
  std::atomic_signal_fence(std::memory_order_acq_rel);
}

}    // namespace dthrottle
