// The tags of a turn's lines, kept until it is answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "lease/name.h"
#include "query/named_tag.h"

namespace dthrottle {

class AskTags {
 public:
  explicit AskTags(std::size_t tag_bytes_max) : tag_bytes_max_(tag_bytes_max) {}

  // The tag that a word stands for. Valid until Clear(), and as long as the word.
  Query Read(std::string_view word, Cost cost, const DigestKey& key) {
    std::string_view tag = word;
    if (word.find('\\') != word.npos) tag = unescaped_.emplace_back(lease::FromWord(word));
    if (tag.size() <= tag_bytes_max_) return {{tag, false}, cost, nullptr};
    ++over_long_count_;
    Query query = over_long_.emplace_back(std::string(tag), tag_bytes_max_, key).query();
    query.cost = cost;
    return query;
  }

  void Clear() {
    unescaped_.clear();
    over_long_.clear();
  }

  std::uint64_t over_long() const { return over_long_count_; }    // since the start

 private:
  const std::size_t tag_bytes_max_;
  std::deque<std::string> unescaped_;
  std::deque<NamedTag> over_long_;
  std::uint64_t over_long_count_ = 0;
};

}    // namespace dthrottle
