// Tags with a number each, in the amount that one frame carries: hits of a report, or bucket states of a snapshot. In a
// report some also say how fast the tag is asked for, which is what forecasts are made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/tag.h"

namespace dthrottle {

struct Entry {
  std::uint64_t value;     // report: hits, 0 only with a demand; snapshot: microseconds until the bucket is full
  std::uint16_t tag_at;    // into the tags of its Entries
  std::uint8_t tag_bytes;
  bool is_digest;            // the tag is 16 bytes of digest and then the name of the rule that it is under
  std::uint8_t phase = 0;    // report: when the hits began, in 128ths of the frame's interval, rounded up
};

inline constexpr unsigned kPhases = 128;

// What a frame has room for, encoded without compression; with its header it stays below kFrameBytesMax.
inline constexpr std::size_t kEntriesMax = 4096;
inline constexpr std::size_t kEntriesBytesMax = 60 * 1024;
inline constexpr std::uint64_t kDemandMax = std::uint64_t{1} << 50;    // thousandths of a token a second
inline constexpr std::size_t kDemandBytesMax = 2 + 8;    // which entry, how many lie between; and its number
static_assert(kEntriesBytesMax <= std::numeric_limits<decltype(Entry::tag_at)>::max());

// How fast the tag of one entry is asked for at the sender, as it lets its peers foretell.
struct Demand {
  std::uint16_t entry;         // its number
  std::uint64_t per_second;    // thousandths of a token
};

class Entries {
 public:
  // False, and unchanged, if there is no room for it. REQUIRES: tag.bytes.size() <= 255, at least 16 of a digest,
  // phase < kPhases.
  bool Add(const Tag& tag, std::uint64_t value, std::uint8_t phase, std::optional<std::uint64_t> demand = {}) {
    const std::size_t encoded = tag.bytes.size() + Overhead(value);
    const std::size_t demands = (demands_.size() + (demand ? 1 : 0)) * kDemandBytesMax;
    if (list_.size() >= kEntriesMax || encoded_bytes_ + encoded + demands > kEntriesBytesMax) return false;
    list_.push_back({value, static_cast<std::uint16_t>(tags_.size()), static_cast<std::uint8_t>(tag.bytes.size()),
                     tag.is_digest, phase});
    if (demand) demands_.push_back({static_cast<std::uint16_t>(list_.size() - 1), *demand});
    tags_.append(tag.bytes);
    encoded_bytes_ += encoded;
    return true;
  }

  // REQUIRES: entry < size(), phase < kPhases.
  void SetPhase(std::size_t entry, std::int64_t phase) { list_[entry].phase = static_cast<std::uint8_t>(phase); }

  Tag tag(const Entry& e) const { return {{tags_.data() + e.tag_at, e.tag_bytes}, e.is_digest}; }

  const std::vector<Entry>& list() const { return list_; }
  const std::vector<Demand>& demands() const { return demands_; }    // in the order of their entries

  // None: the entry says nothing of it.
  std::optional<std::uint64_t> demand(const Entry& e) const {
    if (demands_.empty()) return std::nullopt;
    const auto number = &e - list_.data();
    const auto it = std::lower_bound(demands_.begin(), demands_.end(), number,
                                     [](const Demand& d, std::ptrdiff_t n) { return d.entry < n; });
    if (it == demands_.end() || it->entry != number) return std::nullopt;
    return it->per_second;
  }
  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }

  void Clear() {
    tags_.clear();
    list_.clear();
    demands_.clear();
    encoded_bytes_ = 0;
  }

 private:
  friend class Codec;    // writes what it has decoded in place

  // One byte of length, one of phase and kind, and the value as a varint.
  static std::size_t Overhead(std::uint64_t value) {
    std::size_t bytes = 3;
    for (; value >= 0x80; value >>= 7) ++bytes;
    return bytes;
  }

  std::string tags_;    // one behind the other, in the order of the list
  std::vector<Entry> list_;
  std::vector<Demand> demands_;
  std::size_t encoded_bytes_ = 0;    // without compression and demands
};

}    // namespace dthrottle
