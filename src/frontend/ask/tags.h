// The tags of a turn's lines, kept until it is answered.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "lease/name.h"

namespace dthrottle {

class AskTags {
 public:
  // The tag that a word stands for. Valid until Clear(), and as long as the word.
  std::string_view Unescape(std::string_view word) {
    return word.find('\\') == word.npos ? word : unescaped_.emplace_back(lease::FromWord(word));
  }

  void Clear() { unescaped_.clear(); }

 private:
  std::deque<std::string> unescaped_;
};

}    // namespace dthrottle
