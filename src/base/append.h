// Appends text and whole numbers to a string. There is no format to read at run time, so it costs a copy of the bytes.
#pragma once

#include <charconv>
#include <concepts>
#include <limits>
#include <string>
#include <string_view>

namespace dthrottle {

inline void AppendPart(std::string& out, std::string_view text) {
  out += text;
}

// In decimal.
template <std::integral Number>
void AppendPart(std::string& out, Number number) {
  char digits[std::numeric_limits<Number>::digits10 + 2];    // and a sign
  out.append(digits, std::to_chars(std::begin(digits), std::end(digits), number).ptr);
}

template <class... Parts>
void Append(std::string& out, const Parts&... parts) {
  (AppendPart(out, parts), ...);
}

}    // namespace dthrottle
