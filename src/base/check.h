// DT_CHECK is for our own bugs. Input from outside is handled, counted and answered, never checked.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace dthrottle {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "<2>%s:%d: DT_CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}    // namespace dthrottle

#define DT_CHECK(condition)                                   \
  (__builtin_expect(static_cast<bool>(condition), 1) ? void() \
                                                     : ::dthrottle::CheckFailed(#condition, __FILE__, __LINE__))
