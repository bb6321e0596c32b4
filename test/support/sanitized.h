// Whether this program was built with a sanitizer, which takes ten times as long and memory of its own.
#pragma once

#include <cstdint>

namespace dthrottle::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How many of so many seeds or rounds to try: the same lines run in each, and a sanitizer looks at lines.
constexpr std::uint64_t Fewer(std::uint64_t n) {
  return kSanitized ? (n + 9) / 10 : n;
}

}    // namespace dthrottle::testing
