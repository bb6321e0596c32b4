// The name of a lease client or a resource, as one word of a line.
//
// Words end at a blank, so a blank in a name is written \x20, and a backslash that would be read as the beginning of
// such an escape \x5c. Any other backslash stands for itself: a name without blanks is nearly always written as it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace dthrottle::lease {

inline constexpr std::size_t kNameBytesMax = 255;

inline bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

namespace name_detail {

inline bool IsEscape(std::string_view at) {
  return at.starts_with("\\x20") || at.starts_with("\\x5c");
}

}    // namespace name_detail

inline std::string ToWord(std::string_view name) {
  std::string word;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == ' ') {
      word += "\\x20";
    } else if (name_detail::IsEscape(name.substr(i))) {
      word += "\\x5c";
    } else {
      word += name[i];
    }
  }
  return word;
}

inline std::string FromWord(std::string_view word) {
  std::string name;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool escaped = name_detail::IsEscape(word.substr(i));
    name += !escaped ? word[i] : word[i + 2] == '2' ? ' ' : '\\';
    if (escaped) i += 3;
  }
  return name;
}

}    // namespace dthrottle::lease
