#include "limiter/top_tags.h"

#include <algorithm>
#include <limits>

namespace dthrottle {

void TopTags::Turn(Instant now) {
  if (now < ends_) return;
  previous_.clear();
  if (now < ends_ + kWindow) previous_.swap(current_);
  current_.clear();
  ends_ = now + kWindow;
}

void TopTags::Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now) {
  Turn(now);
  Merge(current_, {hash, weight, 0, std::string(tag.bytes), tag.is_digest}, kEntries);
}

// A tag that is not there takes the place of the least frequent one and inherits its count, as an error.
void TopTags::Merge(Window& window, const Entry& entry, std::size_t entries_max) {
  std::size_t least = 0;
  for (std::size_t i = 0; i < window.size(); ++i) {
    Entry& e = window[i];
    if (e.hash == entry.hash && e.is_digest == entry.is_digest && e.tag == entry.tag) {
      e.count += entry.count;
      e.error += entry.error;
      return;
    }
    if (e.count < window[least].count) least = i;
  }
  if (window.size() < entries_max) {
    window.push_back(entry);
    return;
  }
  const std::uint64_t inherited = window[least].count;
  window[least] = entry;
  window[least].count += inherited;
  window[least].error += inherited;
}

void TopTags::AddTo(std::vector<Entry>& sums, Instant now) const {
  if (now >= ends_ + kWindow) return;
  for (const Entry& e : current_) Merge(sums, e, std::numeric_limits<std::size_t>::max());
  if (now >= ends_) return;
  for (const Entry& e : previous_) Merge(sums, e, std::numeric_limits<std::size_t>::max());
}

std::vector<TopTags::Entry> Largest(std::vector<TopTags::Entry> entries, std::size_t n) {
  const std::size_t keep = std::min(n, entries.size());
  std::partial_sort(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(keep), entries.end(),
                    [](const auto& a, const auto& b) {
                      return a.count != b.count ? a.count > b.count : a.tag < b.tag;
                    });
  entries.resize(keep);
  return entries;
}

}  // namespace dthrottle
