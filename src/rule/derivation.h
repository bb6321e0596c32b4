// Tags that are derived from a tag and charged with it: the network that an address is in, the tenant that a user is
// of. A derived tag is a tag like any other: it finds its rule by its text, and hosts share it by that rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/tag.h"

namespace dthrottle {

struct Derivation {
  enum class Kind : std::uint8_t {
    kIpv4,      // the tag is an address: its network of `bits`
    kIpv6,
    kBefore,    // what stands before the first `separator`
  };
  static constexpr std::size_t kSeparatorMax = 16;    // bytes

  Kind kind = Kind::kBefore;
  std::uint8_t bits = 0;
  std::string separator;

  friend bool operator==(const Derivation&, const Derivation&) = default;
};

// How settings write it: "ipv4/24", "ipv6/48", "before /".
Result<Derivation> ParseDerivation(std::string_view text);
std::string FormatDerivation(const Derivation& derivation);

// A tag, or as much of an over-long one as is known of its beginning.
struct TagText {
  std::string_view bytes;    // at most kTagBytesMax
  bool whole = true;
};

// The tag that is derived, if there is one, written into `text`. Its first `head` bytes are those of the tag, and
// only what stands behind them is looked at. A separator that is not in what is known of an over-long tag is taken to
// stand behind that: so no tag is without the limit of what stands before. REQUIRES: head <= tag.bytes.size().
std::optional<std::string_view> Derive(const Derivation& derivation, TagText tag, std::size_t head,
                                       std::span<char, kTagBytesMax> text);

}    // namespace dthrottle
