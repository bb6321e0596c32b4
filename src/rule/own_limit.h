// A limit that a tag names itself: TAG|100/m is the tag TAG with a burst of 100 and a rate of 100 a minute, where the rule
// of TAG allows so much (Rule::max_own_limit).
//
// The limit is part of the tag, so every host, every way of sharing and every command finds the same limit from the tag
// alone, and a bucket never changes its limit: TAG|100/m and TAG|200/m are two tags.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/append.h"
#include "base/check.h"
#include "bucket/bucket.h"

namespace dthrottle {

struct OwnLimit {
  struct Unit {
    std::string_view name;
    std::uint32_t seconds;
  };
  // A month has 30 days, a year 365. The last is one that nobody knows.
  static constexpr Unit kUnits[] = {{"s", 1},         {"m", 60},          {"h", 3600},        {"d", 86400},
                                    {"w", 7 * 86400}, {"mo", 30 * 86400}, {"y", 365 * 86400}, {"?", 0}};
  static constexpr std::size_t kBytesMax = 14;                  // of its text, with the |
  static constexpr std::uint32_t kRequestsMax = 100'000'000;    // that a rule may allow

  std::string_view tag;          // without it
  std::uint32_t requests = 0;    // the burst; 0: none that can be
  std::uint32_t seconds = 0;     // in which the bucket is filled; 0: of an unknown unit

  bool can_be() const { return requests > 0 && requests <= kRequestsMax && seconds > 0; }

  // What each of so many hosts has that divide it equally (as TakeEqualPart does with a rule's). REQUIRES: can_be();
  // parts >= 1.
  Shape ToShape(std::uint32_t parts = 1) const {
    constexpr Ticks kTicksPerSecond = 1'000'000'000 * kTicksPerNanosecond;
    constexpr Ticks kSlowest = kTicksPerSecond * static_cast<Ticks>(kRefillSecondsMax);
    DT_CHECK(can_be() && parts >= 1);
    const Ticks interval = seconds * kTicksPerSecond / requests;
    const Ticks of_part = interval > kSlowest / parts ? kSlowest : interval * parts;
    return {of_part, requests < parts ? of_part : interval * requests};
  }
};

// The limit behind the last | of a tag: a number, a / and a unit. None: the tag names none.
inline std::optional<OwnLimit> ReadOwnLimit(std::string_view tag) {
  const std::size_t at = tag.rfind('|');
  if (at == tag.npos) return std::nullopt;
  OwnLimit limit{.tag = tag.substr(0, at)};
  const char* const end = tag.data() + tag.size();
  const auto [rest, error] = std::from_chars(tag.data() + at + 1, end, limit.requests);
  if (error != std::errc() || rest == end || *rest != '/') return std::nullopt;
  const std::string_view name(rest + 1, static_cast<std::size_t>(end - rest) - 1);
  for (const OwnLimit::Unit& unit : OwnLimit::kUnits) {
    if (unit.name != name) continue;
    limit.seconds = unit.seconds;
    return limit;
  }
  return std::nullopt;
}

// Puts a limit behind a tag. A unit of another length than those above is written as one that nobody knows.
inline void AppendOwnLimit(std::string& tag, std::uint32_t requests, std::uint32_t seconds) {
  std::string_view name = "?";
  for (const OwnLimit::Unit& unit : OwnLimit::kUnits) {
    if (unit.seconds == seconds) name = unit.name;
  }
  Append(tag, "|", requests, "/", name);
}

}    // namespace dthrottle
