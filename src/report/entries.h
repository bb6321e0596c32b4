// Tags with a number each, in the amount that one frame carries: hits of a report, or bucket states of a snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/tag.h"

namespace dthrottle {

struct Entry {
  std::uint64_t value;     // report: hits; snapshot: microseconds until the bucket is full
  std::uint16_t tag_at;    // into the tags of its Entries
  std::uint8_t tag_bytes;
  bool is_digest;            // the tag is 16 bytes of digest and then the name of the rule that it is under
  std::uint8_t phase = 0;    // report: when the hits began, in 128ths of the frame's interval, rounded up
};

inline constexpr unsigned kPhases = 128;

// What a frame has room for, encoded without compression; with its header it stays below kFrameBytesMax.
inline constexpr std::size_t kEntriesMax = 4096;
inline constexpr std::size_t kEntriesBytesMax = 60 * 1024;
static_assert(kEntriesBytesMax <= std::numeric_limits<decltype(Entry::tag_at)>::max());

class Entries {
 public:
  // False, and unchanged, if there is no room for it. REQUIRES: tag.bytes.size() <= 255, at least 16 of a digest,
  // phase < kPhases.
  bool Add(const Tag& tag, std::uint64_t value, std::uint8_t phase) {
    const std::size_t encoded = tag.bytes.size() + Overhead(value);
    if (list_.size() >= kEntriesMax || encoded_bytes_ + encoded > kEntriesBytesMax) return false;
    list_.push_back({value, static_cast<std::uint16_t>(tags_.size()), static_cast<std::uint8_t>(tag.bytes.size()),
                     tag.is_digest, phase});
    tags_.append(tag.bytes);
    encoded_bytes_ += encoded;
    return true;
  }

  Tag tag(const Entry& e) const { return {std::string_view(tags_).substr(e.tag_at, e.tag_bytes), e.is_digest}; }

  const std::vector<Entry>& list() const { return list_; }
  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }

  void Clear() {
    tags_.clear();
    list_.clear();
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
  std::size_t encoded_bytes_ = 0;    // without compression
};

}    // namespace dthrottle
