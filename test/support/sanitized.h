// Whether this program was built with a sanitizer, which takes ten times as long and memory of its own.
#pragma once

namespace dthrottle::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}    // namespace dthrottle::testing
