// What hosts say to each other of limits that operators have set, as bytes (protocol/limit.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dthrottle {

inline constexpr std::string_view kLimitFramePrefix = "DTL\1";    // the last byte is the major version
inline constexpr std::size_t kLimitFrameBytesMax = 64 * 1024;
inline constexpr std::size_t kLimitsPerFrame = 32;
inline constexpr std::size_t kLimitLinesBytesMax = 60'000;    // of all of them
inline constexpr std::size_t kLimitHashesMax = 4096;

enum class LimitMessageKind : std::uint8_t {
  kDigest = 1,    // count, sum: of the limits that the sender has
  kHave = 2,      // hashes of all of them. The receiver sends what is missing there; and unless it is an `answer`, its
                  // own hashes if it misses some
  kLimits = 3,    // lines
};

// A type of its own, so that it has fields of its own (base/fields.h).
struct LimitLines : std::vector<std::string> {
  using std::vector<std::string>::vector;
};

struct LimitMessage {
  LimitMessageKind kind{};
  std::uint64_t count = 0, sum = 0;
  bool answer = false;
  std::vector<std::uint64_t> hashes{};
  LimitLines lines{};
  friend bool operator==(const LimitMessage&, const LimitMessage&) = default;
};

// REQUIRES: at most kLimitHashesMax hashes, and kLimitsPerFrame lines of at most kLimitLinesBytesMax bytes together.
std::string EncodeLimits(const LimitMessage& message);

// False: it is no such frame, or of another version; `message` is unspecified then. The lines may be anything.
[[nodiscard]] bool DecodeLimits(std::string_view frame, LimitMessage& message);

}    // namespace dthrottle
