// A tag as somebody typed it, whatever its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "base/tag.h"
#include "query/over_long.h"

namespace dthrottle {

// Holds what its query points to.
class NamedTag {
 public:
  NamedTag(std::string bytes, std::size_t tag_bytes_max, const DigestKey& key);
  const Query& query() const { return query_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::unique_ptr<OverLongReader> reader_;
  OverLongTag over_long_;
  Query query_;
};

// Queries about tags of a turn. A short tag stays where it was read.
class NamedTags {
 public:
  explicit NamedTags(std::size_t tag_bytes_max) : tag_bytes_max_(tag_bytes_max) {}

  // Valid until Clear(), and as long as the bytes of the tag.
  Query Read(std::string_view tag, Cost cost, const DigestKey& key) {
    if (tag.size() <= tag_bytes_max_) return {{tag, false}, cost, nullptr};
    ++over_long_count_;
    Query query = over_long_.emplace_back(std::string(tag), tag_bytes_max_, key).query();
    query.cost = cost;
    return query;
  }

  void Clear() { over_long_.clear(); }

  // Tags that were longer than query.max_tag_bytes, ever.
  std::uint64_t over_long() const { return over_long_count_; }

 private:
  const std::size_t tag_bytes_max_;
  std::deque<NamedTag> over_long_;
  std::uint64_t over_long_count_ = 0;
};

}    // namespace dthrottle
