// A tag as somebody typed it, whatever its length.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

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

}    // namespace dthrottle
