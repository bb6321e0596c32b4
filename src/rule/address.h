// Internet addresses and networks in tags. An IPv4 address that is written as IPv6, ::ffff:192.0.2.1, is an IPv4
// address.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace dthrottle {

struct IpAddress {
  bool is_v6 = false;
  // The bits from the left, so that addresses compare as numbers: IPv4 has the first 32, the others are 0.
  std::uint64_t high = 0, low = 0;

  unsigned size() const { return is_v6 ? 128 : 32; }    // bits
  // The address with all but its first `bits` bits zero.
  IpAddress Prefix(unsigned bits) const;

  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
};

struct Network {
  IpAddress address;    // bits beyond `bits` are zero
  unsigned bits = 0;

  friend auto operator<=>(const Network&, const Network&) = default;
};

// The whole text is an address in the usual form, without a zone.
std::optional<IpAddress> ParseAddress(std::string_view text);

// The whole text is a network such as "192.0.2.0/24" or an address. Bits beyond the network's are dropped.
std::optional<Network> ParseNetwork(std::string_view text);

// Writes the network as RFC 5952 wants it, such as "2001:db8::/48", and returns what it wrote.
inline constexpr std::size_t kNetworkTextMax = 43;
std::string_view WriteNetwork(const Network& network, std::span<char, kNetworkTextMax> text);

}    // namespace dthrottle
