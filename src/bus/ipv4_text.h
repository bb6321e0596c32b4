// IPv4 addresses as text and as the four bytes that they are. Most tags are addresses, and reports carry them as bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace dthrottle {

inline constexpr std::size_t kIpv4Bytes = 4, kIpv4TextMin = 7, kIpv4TextMax = 15;

// Whether `text` is what WriteIpv4 writes for some address, and its bytes then; else they may have any value.
inline bool ReadIpv4(std::string_view text, char* bytes) {
  if (text.size() < kIpv4TextMin || text.size() > kIpv4TextMax) return false;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t i = 0; i < kIpv4Bytes; ++i) {
    if (i != 0 && (at == end || *at++ != '.')) return false;
    const char* const first = at;
    unsigned value = 0;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) value = 10 * value + static_cast<unsigned>(*at - '0');
    const auto digits = at - first;
    if (digits == 0 || digits > 3 || value > 255 || (digits > 1 && *first == '0')) return false;
    bytes[i] = static_cast<char>(value);
  }
  return at == end;
}

namespace ipv4_text {

struct Octet {
  char text[4];    // with a dot behind it
  std::uint8_t length;
};

inline constexpr std::array<Octet, 256> kOctets = [] {
  std::array<Octet, 256> octets{};
  for (unsigned value = 0; value < 256; ++value) {
    Octet& o = octets[value];
    for (unsigned unit = value >= 100 ? 100 : value >= 10 ? 10 : 1; unit != 0; unit /= 10) {
      o.text[o.length++] = static_cast<char>('0' + value / unit % 10);
    }
    o.text[o.length++] = '.';
  }
  return octets;
}();

}    // namespace ipv4_text

// Writes the usual text of an address, and returns its end. REQUIRES: `to` has room for kIpv4TextMax + 1 bytes.
inline char* WriteIpv4(const char* bytes, char* to) {
  for (std::size_t i = 0; i < kIpv4Bytes; ++i) {
    const ipv4_text::Octet& o = ipv4_text::kOctets[static_cast<std::uint8_t>(bytes[i])];
    std::memcpy(to, o.text, sizeof o.text);
    to += o.length;
  }
  return to - 1;
}

}    // namespace dthrottle
