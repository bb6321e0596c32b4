// What a host says of a tag's quota: how much one counter has counted in a period.
#pragma once

#include <cstdint>
#include <optional>

namespace dthrottle {

// No host counts under this. The owner of a tag says so of all hosts together (protocol/owners.md).
inline constexpr std::uint64_t kAllHosts = 0;
// Counters of hosts begin here. Sites use lower ones: each tells others what its hosts have counted (protocol/sites.md).
inline constexpr std::uint64_t kHostCounters = std::uint64_t{1} << 32;
// When a period may begin or end, in seconds since 1970: no message says a later instant.
inline constexpr std::uint64_t kQuotaPeriodMax = std::uint64_t{1} << 40;

struct QuotaWord {
  std::uint64_t counter = kAllHosts;    // who has counted, below 2^56: a host from one boot to the next
  std::uint64_t period = 0;     // when the period began, seconds since 1970
  std::uint64_t taken = 0;      // tokens
  // Tokens of these that came back. None: the word is passed on by another host, and `taken` leaves them out.
  std::optional<std::uint64_t> back{};

  std::uint64_t net() const { return taken - back.value_or(0); }

  friend bool operator==(const QuotaWord&, const QuotaWord&) = default;
};

}    // namespace dthrottle
