// The words of a line.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Takes the next word off a line whose words are one blank apart; empty: a blank comes next, or nothing.
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

// The words between blanks, one or more.
inline std::vector<std::string_view> SplitWords(std::string_view line, std::string_view blanks = " ") {
  std::vector<std::string_view> words;
  for (std::size_t begin; (begin = line.find_first_not_of(blanks)) != line.npos;) {
    const std::size_t end = std::min(line.find_first_of(blanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
  return words;
}

inline std::string_view Trimmed(std::string_view text, std::string_view blanks = " \t") {
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

// What somebody wrote, short and printable.
inline std::string Shown(std::string_view text, std::size_t bytes_max = 40) {
  std::string shown(text.substr(0, bytes_max));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}

}    // namespace dthrottle
