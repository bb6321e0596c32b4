#include "lab/refused_tags.h"

#include <algorithm>

namespace dthrottle::lab {

void RefusedTags::Add(std::string_view tag, std::size_t rule, bool override_, std::int64_t time_s) {
  auto it = tags_.find(tag);
  if (it == tags_.end()) {
    if (tags_.size() >= kMost) {
      ++untold_;
      return;
    }
    const auto number = static_cast<std::uint32_t>(rule);
    it = tags_.emplace(tag, Counts{.first_s = time_s, .rule = number, .override_ = override_}).first;
  }
  ++it->second.refused;
  it->second.last_s = time_s;
}

std::vector<RefusedTags::Named> RefusedTags::Most(std::size_t count) const {
  std::vector<Named> all;
  all.reserve(tags_.size());
  for (const auto& [tag, counts] : tags_) all.push_back({counts, tag});
  count = std::min(count, all.size());
  const auto more = [](const Named& a, const Named& b) {
    return a.refused != b.refused ? a.refused > b.refused : a.tag < b.tag;
  };
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(), more);
  all.resize(count);
  return all;
}

}    // namespace dthrottle::lab
