// A name made of entries: HEAD|KEY=VALUE|KEY=VALUE, as a word of a line. For the tags and resources of Envoy.
//
// Values come from strangers, so what could be mistaken for another part is written as %XX, and a name that is too long
// keeps its two ends and a digest of the whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dthrottle {

class TagMaker {
 public:
  explicit TagMaker(std::string_view head) {
    name_.reserve(kUsualBytes);
    Append(head, false);
  }

  void Add(std::string_view key, std::string_view value);

  // The name, in at most so many bytes. REQUIRES: at least 64.
  std::string Make(std::size_t bytes_max) &&;

 private:
  static constexpr std::size_t kUsualBytes = 60;

  void Append(std::string_view text, bool is_key);

  std::string name_;
};

}    // namespace dthrottle
