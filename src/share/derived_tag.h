// A tag that is charged with another (rule/derivation.h), as an application would ask for it by name: one that is longer
// than query.max_tag_bytes goes by its digest, so that both are one bucket.
#pragma once

#include <string_view>

#include "query/over_long.h"
#include "share/share.h"

namespace dthrottle {

class DerivedTag {
 public:
  DerivedTag() = default;
  // The bytes of `text` must outlive it.
  DerivedTag(std::string_view text, const LimiterCore& core) : known_{{}, 0, text, text} {
    if (text.size() <= core.tag_bytes_max) return;
    known_.digest = DigestOf(text, core.table->keys().digest);
    known_.size = text.size();
  }

  // Are valid as long as this.
  Tag tag() const {
    return is_over_long() ? Tag{{known_.digest.data(), known_.digest.size()}, true} : Tag{known_.head, false};
  }
  Query query(Cost cost = 1) const { return {tag(), cost, is_over_long() ? &known_ : nullptr}; }

 private:
  bool is_over_long() const { return known_.size != 0; }

  OverLongTag known_;    // of size 0: its head is the tag
};

}    // namespace dthrottle
