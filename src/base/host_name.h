// What a host may be called by its peers: 1 to 64 letters, digits and "_-.".
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace dthrottle {

inline constexpr std::size_t kHostNameBytesMax = 64;

constexpr bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

inline bool IsHostName(std::string_view name) {
  return !name.empty() && name.size() <= kHostNameBytesMax && std::ranges::all_of(name, IsNameByte);
}

}    // namespace dthrottle
