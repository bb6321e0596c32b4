// The answers of one turn of a front end, one behind the other in the order of what was asked.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dthrottle {

class Answers {
 public:
  // Where the answer that is being written goes, and its end.
  std::string& text() { return text_; }
  void End() { ends_.push_back(text_.size()); }

  // The bytes of `n` answers that follow the `first` ones.
  std::string_view Of(std::size_t first, std::size_t n) const {
    if (n == 0) return {};
    const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
    return std::string_view(text_).substr(begin, ends_[first + n - 1] - begin);
  }

  void Clear() {
    ends_.clear();
    Empty(text_);
  }

  // Makes a text of a turn empty, and keeps its memory for the next turn unless it was an unusually large one.
  static void Empty(std::string& text) {
    text.clear();
    if (text.capacity() > kKeptBytesMax) text.shrink_to_fit();
  }

 private:
  static constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20;

  std::string text_;
  std::vector<std::size_t> ends_;    // of each answer
};

}    // namespace dthrottle
