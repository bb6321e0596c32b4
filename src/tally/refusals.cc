#include "tally/refusals.h"

#include <algorithm>

namespace dthrottle {

void Refusals::Add(const Tag& tag, std::string_view rule, std::string_view front_end, bool shed, Instant now) {
  due_ = now + kEvery;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[added_++ % kKept];
  entry.tag_bytes = tag.bytes.size();
  entry.rule_bytes = std::min(rule.size(), kRuleBytes);
  std::copy_n(tag.bytes.begin(), std::min(tag.bytes.size(), kTagBytes), entry.tag.begin());
  std::copy_n(rule.begin(), entry.rule_bytes, entry.rule.begin());
  entry.is_digest = tag.is_digest;
  entry.front_end = front_end;
  entry.shed = shed;
  entry.at = now;
}

void Refusals::AppendTo(std::vector<Refusal>& all) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < std::min(added_, kKept); ++i) {
    const Entry& entry = entries_[i];
    all.push_back({{entry.tag.data(), std::min(entry.tag_bytes, kTagBytes)},
                   entry.is_digest,
                   entry.tag_bytes > kTagBytes,
                   {entry.rule.data(), entry.rule_bytes},
                   entry.front_end,
                   entry.shed,
                   entry.at});
  }
}

}    // namespace dthrottle
