// Memory that is wanted soon, asked for while something else is done.
#pragma once

#include <cstddef>

namespace dthrottle {

// Asks for the first lines of what lies there. The empty statement of assembler keeps calls of this: GCC takes a function
// that only prefetches for one without an effect.
template <std::size_t kLines>
void Prefetch(const void* what) {
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(static_cast<const char*>(what) + i * kLine);
  asm volatile("");
}

}    // namespace dthrottle
