#include "tally/top_tags.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

TopTags::TopTags() {
  for (Window* window : {&current_, &previous_}) {
    window->keys.reserve(kEntries);
    window->entries.reserve(kEntries);
  }
}

void TopTags::Turn(Instant now) {
  if (now < ends_) return;
  previous_.Clear();
  if (now < ends_ + kWindow) std::swap(previous_, current_);
  current_.Clear();
  ends_ = now + kWindow;
}

// A tag that is not there takes the place of the least frequent one and inherits its count, as an error. Entries keep
// the room that their tags once needed, so this stops allocating soon.
void TopTags::Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now) {
  Turn(now);
  auto& [keys, entries] = current_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].hash != hash || entries[i].is_digest != tag.is_digest || entries[i].tag != tag.bytes) continue;
    keys[i].count += weight;
    return;
  }
  if (keys.size() < kEntries) {
    keys.push_back({hash, weight});
    entries.push_back({std::string(tag.bytes), tag.is_digest, 0, 0});
    return;
  }
  Key& least = *std::ranges::min_element(keys, {}, &Key::count);
  TopEntry& e = entries[static_cast<std::size_t>(&least - keys.data())];
  e.tag.assign(tag.bytes);
  e.is_digest = tag.is_digest;
  e.error = least.count;
  least = {hash, least.count + weight};
}

void TopTags::AddTo(TopSums& sums, Instant now) const {
  const auto add = [&sums](const Window& window) {
    for (std::size_t i = 0; i < window.keys.size(); ++i) {
      const TopEntry& e = window.entries[i];
      TopEntry& sum = sums[e.tag + (e.is_digest ? '\1' : '\0')];
      sum.tag = e.tag;
      sum.is_digest = e.is_digest;
      sum.count += window.keys[i].count;
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
