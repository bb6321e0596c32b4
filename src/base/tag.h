// A tag names who is throttled: any bytes but LF, at most `query.max_tag_bytes` of them.
//
// A longer tag is known by the keyed 128-bit digest of all its bytes, so that it has a bucket of its own and costs
// no more memory than another. Its first and last bytes are kept beside the digest as long as the query lasts,
// because a rule may have to look at them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/tokens.h"

namespace dthrottle {

inline constexpr std::size_t kTagBytesMax = 255;    // the most that `query.max_tag_bytes` may allow
inline constexpr std::size_t kDigestBytes = 16;

// What remains of a tag longer than `query.max_tag_bytes`.
struct OverLongTag {
  std::array<char, kDigestBytes> digest;
  std::size_t size;         // bytes
  std::string_view head;    // its first kTagBytesMax bytes, or all of them
  std::string_view tail;    // its last kTagBytesMax bytes, or all of them
};

struct Tag {
  std::string_view bytes;    // the tag, or the digest of an over-long one
  bool is_digest = false;

  friend bool operator==(const Tag&, const Tag&) = default;
};

// The bytes of a tag, kept after the query.
class KeptTag {
 public:
  KeptTag() = default;
  // REQUIRES: no more than kTagBytesMax bytes.
  explicit KeptTag(const Tag& tag) : is_digest_(tag.is_digest), size_(static_cast<std::uint8_t>(tag.bytes.size())) {
    std::memcpy(bytes_.data(), tag.bytes.data(), tag.bytes.size());
  }

  // Is valid as long as this.
  Tag tag() const { return {{bytes_.data(), size_}, is_digest_}; }

 private:
  bool is_digest_ = false;
  std::uint8_t size_ = 0;
  std::array<char, kTagBytesMax> bytes_;
};

// One question: may `tag` spend `cost` tokens? The views must outlive the answer.
struct Query {
  Tag tag;
  Cost cost = 1;
  const OverLongTag* over_long = nullptr;    // set exactly when tag.is_digest
};

}    // namespace dthrottle
