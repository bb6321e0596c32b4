// The words for the values of an enum, as they stand in settings, in answers and in logs. An enum has them once, beside
// its definition and in the order of its values:
//
//   enum class Color { kRed, kGreen };
//   DT_NAMES(Color, "red", "green")
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

// Defines Names(E), which is the words, in the namespace of the enum E.
#define DT_NAMES(E, ...)                                           \
  inline constexpr std::string_view k##E##Names[] = {__VA_ARGS__}; \
  constexpr std::span<const std::string_view> Names(E) {           \
    return k##E##Names;                                            \
  }

namespace dthrottle {

// REQUIRES: `value` is one of those that have a name.
template <class E, class = decltype(Names(E()))>
constexpr std::string_view Name(E value) {
  return Names(value)[static_cast<std::size_t>(value)];
}

}    // namespace dthrottle
