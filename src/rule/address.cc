#include "rule/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/number.h"

namespace dthrottle {

namespace {

constexpr std::size_t kGroups = 8;    // of 16 bits

std::uint64_t FromBigEndian(const unsigned char* bytes, std::size_t n) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < n; ++i) value = value << 8 | bytes[i];
  return value;
}

std::uint64_t FirstBits(std::uint64_t value, unsigned bits) {
  return bits == 0 ? 0 : value & ~std::uint64_t{0} << (64 - std::min(bits, 64u));
}

unsigned Group(const IpAddress& address, std::size_t i) {
  return static_cast<unsigned>((i < 4 ? address.high : address.low) >> (48 - i % 4 * 16) & 0xffff);
}

struct Run {
  std::size_t begin = kGroups, end = kGroups;
};

// The longest run of zero groups, the first of several, if it has two groups or more.
Run LongestZeros(const IpAddress& address) {
  Run longest;
  for (std::size_t i = 0; i < kGroups; ++i) {
    const std::size_t begin = i;
    while (i < kGroups && Group(address, i) == 0) ++i;
    if (i - begin > std::max<std::size_t>(longest.end - longest.begin, 1)) longest = {begin, i};
  }
  return longest;
}

char* WriteV4(const IpAddress& address, char* to, char* end) {
  for (unsigned shift = 64; shift > 32; shift -= 8) {
    if (shift < 64) *to++ = '.';
    to = std::to_chars(to, end, address.high >> (shift - 8) & 0xff).ptr;
  }
  return to;
}

char* WriteV6(const IpAddress& address, char* to, char* end) {
  const Run zeros = LongestZeros(address);
  for (std::size_t i = 0; i < kGroups; ++i) {
    if (i == zeros.begin) {
      *to++ = ':', *to++ = ':';
      i = zeros.end;
      if (i == kGroups) break;
    } else if (i > 0) {
      *to++ = ':';
    }
    to = std::to_chars(to, end, Group(address, i), 16).ptr;
  }
  return to;
}

}    // namespace

IpAddress IpAddress::Prefix(unsigned bits) const {
  return {is_v6, FirstBits(high, bits), bits > 64 ? FirstBits(low, bits - 64) : 0};
}

std::optional<IpAddress> ParseAddress(std::string_view text) {
  std::array<char, INET6_ADDRSTRLEN> terminated;
  if (text.size() >= terminated.size() || text.find('\0') != text.npos) return std::nullopt;
  *std::copy(text.begin(), text.end(), terminated.begin()) = '\0';
  std::array<unsigned char, 16> bytes;
  if (text.find(':') == text.npos) {
    if (inet_pton(AF_INET, terminated.data(), bytes.data()) != 1) return std::nullopt;
    return IpAddress{false, FromBigEndian(bytes.data(), 4) << 32, 0};
  }
  if (inet_pton(AF_INET6, terminated.data(), bytes.data()) != 1) return std::nullopt;
  const IpAddress address{true, FromBigEndian(bytes.data(), 8), FromBigEndian(bytes.data() + 8, 8)};
  const bool mapped = address.high == 0 && address.low >> 32 == 0xffff;
  return mapped ? IpAddress{false, address.low << 32, 0} : address;
}

std::optional<Network> ParseNetwork(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::optional<IpAddress> address = ParseAddress(text.substr(0, slash));
  if (!address.has_value()) return std::nullopt;
  unsigned bits = address->size();
  if (slash != text.npos) {
    if (!ParseNumber(text.substr(slash + 1), bits)) return std::nullopt;
    // The length of a mapped IPv4 network counts the bits in front of it too.
    if (!address->is_v6 && text.find(':') != text.npos) bits = bits >= 96 ? bits - 96 : address->size() + 1;
    if (bits > address->size()) return std::nullopt;
  }
  return Network{address->Prefix(bits), bits};
}

std::string_view WriteNetwork(const Network& network, std::span<char, kNetworkTextMax> text) {
  char* const end = text.data() + text.size();
  char* to = network.address.is_v6 ? WriteV6(network.address, text.data(), end) : WriteV4(network.address, text.data(), end);
  *to++ = '/';
  to = std::to_chars(to, end, network.bits).ptr;
  return {text.data(), to};
}

}    // namespace dthrottle
