// What rules need of an over-long tag beside its digest, kept after the query: which rule it is under, and which tags are
// charged with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/tag.h"

namespace dthrottle {

class KeptEnds {
 public:
  KeptEnds() = default;
  // Keeps nothing of a query whose tag is not over-long.
  explicit KeptEnds(const Query& query) {
    if (query.over_long == nullptr) return;
    size_ = query.over_long->size;
    bytes_.append(query.over_long->head).append(query.over_long->tail);
  }

  // The over-long tag with this digest, valid as long as this; none: nothing was kept.
  std::optional<OverLongTag> Of(const Tag& digest) const {
    if (size_ == 0 || digest.bytes.size() != kDigestBytes) return std::nullopt;
    const std::string_view ends = bytes_;
    OverLongTag tag{{}, size_, ends.substr(0, end_bytes()), ends.substr(end_bytes())};
    digest.bytes.copy(tag.digest.data(), kDigestBytes);
    return tag;
  }

  static void Fields(auto& state, auto& self) {
    state(self.size_, self.bytes_);
    state.Check(self.bytes_.size() == 2 * self.end_bytes());
  }

 private:
  std::size_t end_bytes() const { return std::min(size_, kTagBytesMax); }

  std::size_t size_ = 0;    // bytes of the tag
  std::string bytes_;       // its head and its tail
};

}    // namespace dthrottle
