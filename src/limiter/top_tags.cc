#include "limiter/top_tags.h"

#include <algorithm>

namespace dthrottle {

TopTags::TopTags() {
  current_.reserve(kEntries);
  previous_.reserve(kEntries);
}

void TopTags::Turn(Instant now) {
  if (now < ends_) return;
  previous_.clear();
  if (now < ends_ + kWindow) previous_.swap(current_);
  current_.clear();
  ends_ = now + kWindow;
}

// A tag that is not there takes the place of the least frequent one and inherits its count, as an error. Entries keep
// the room that their tags once needed, so this stops allocating soon.
void TopTags::Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now) {
  Turn(now);
  std::size_t least = 0;
  for (std::size_t i = 0; i < current_.size(); ++i) {
    TopEntry& e = current_[i];
    if (e.hash == hash && e.is_digest == tag.is_digest && e.tag == tag.bytes) {
      e.count += weight;
      return;
    }
    if (e.count < current_[least].count) least = i;
  }
  if (current_.size() < kEntries) {
    current_.push_back({std::string(tag.bytes), tag.is_digest, hash, weight, 0});
    return;
  }
  TopEntry& e = current_[least];
  e.tag.assign(tag.bytes);
  e.is_digest = tag.is_digest;
  e.hash = hash;
  e.error = e.count;
  e.count += weight;
}

void TopTags::AddTo(TopSums& sums, Instant now) const {
  const auto add = [&sums](const Window& window) {
    for (const TopEntry& e : window) {
      TopEntry& sum = sums[e.tag + (e.is_digest ? '\1' : '\0')];
      sum.tag = e.tag;
      sum.is_digest = e.is_digest;
      sum.count += e.count;
      sum.error += e.error;
    }
  };
  if (now >= ends_ + kWindow) return;
  add(current_);
  if (now < ends_) add(previous_);
}

std::vector<TopEntry> Largest(const TopSums& sums, std::size_t n) {
  std::vector<TopEntry> entries;
  for (const auto& [key, entry] : sums) entries.push_back(entry);
  const std::size_t keep = std::min(n, entries.size());
  std::partial_sort(
      entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(keep), entries.end(),
      [](const auto& a, const auto& b) { return a.count != b.count ? a.count > b.count : a.tag < b.tag; });
  entries.resize(keep);
  return entries;
}

}    // namespace dthrottle
