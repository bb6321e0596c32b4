// The words of a line.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dthrottle {

// Takes the next word off a line; empty: there is none.
inline std::string_view NextWord(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

// Takes the word off a line if it is the next one.
inline bool TakeWord(std::string_view& line, std::string_view word) {
  std::string_view rest = line;
  if (NextWord(rest) != word) return false;
  line = rest;
  return true;
}

// Takes the next word off a line where one blank stands between two; empty: nothing stands before that.
inline std::string_view NextField(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

// Takes "NAME=VALUE" off a line if it is the next word, where `name` ends with the =; returns the value.
inline std::optional<std::string_view> TakeNamed(std::string_view& line, std::string_view name) {
  std::string_view rest = line;
  const std::string_view word = NextWord(rest);
  if (!word.starts_with(name)) return std::nullopt;
  line = rest;
  return word.substr(name.size());
}

// False: the word is no number, or not one that fits.
bool ParseNumber(std::string_view word, std::unsigned_integral auto& number, int base = 10) {
  const char* const end = word.data() + word.size();
  return std::from_chars(word.data(), end, number, base) == std::from_chars_result{end, std::errc()};
}

// What somebody wrote, short and printable.
inline std::string Shown(std::string_view text) {
  constexpr std::size_t kShownBytes = 40;
  std::string shown(text.substr(0, kShownBytes));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}

inline void AppendNumber(std::string& out, std::int64_t number) {
  const fmt::format_int digits(number);
  out.append(digits.data(), digits.size());
}

}    // namespace dthrottle
