// A number that somebody wrote.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace dthrottle {

// All of `text` is the number, without a sign in front unless it is a minus that T can have. False: it is none, or does
// not fit; `number` is anything then.
template <class T>
  requires std::is_arithmetic_v<T>
bool ParseNumber(std::string_view text, T& number, int base = 10) {
  const char* const end = text.data() + text.size();
  if constexpr (std::is_integral_v<T>) {
    return std::from_chars(text.data(), end, number, base) == std::from_chars_result{end, std::errc()};
  } else {
    return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()};
  }
}

}    // namespace dthrottle
