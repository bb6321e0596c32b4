#include "tally/top_tags.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

TopTags::Window::Window() { Clear(); }

// Entries keep the room that their tags once needed, so a window stops allocating soon.
void TopTags::Window::Clear() {
  chains_.fill(kNone);
  for (Index i = 0; i < kEntries; ++i) Put(i, {0, i});
}

void TopTags::Window::Put(std::size_t place, Place moved) {
  heap_[place] = moved;
  entries_[moved.entry].place = static_cast<Index>(place);
}

void TopTags::Window::Raise(std::size_t place, std::uint64_t weight) {
  Place raised = heap_[place];
  raised.count += weight;
  for (std::size_t child; (child = 2 * place + 1) < kEntries; place = child) {
    if (child + 1 < kEntries && heap_[child + 1].count < heap_[child].count) ++child;
    if (heap_[child].count >= raised.count) break;
    Put(place, heap_[child]);
  }
  Put(place, raised);
}

void TopTags::Window::Unchain(Index entry) {
  Index* at = &ChainOf(entries_[entry].hash);
  while (*at != entry) at = &entries_[*at].next;
  *at = entries_[entry].next;
}

// A tag that is not there takes the place of the least frequent one and inherits its count, as an error.
void TopTags::Window::Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight) {
  for (Index i = ChainOf(hash); i != kNone; i = entries_[i].next) {
    const Entry& e = entries_[i];
    if (e.hash == hash && e.is_digest == tag.is_digest && e.tag == tag.bytes) return Raise(e.place, weight);
  }
  if (weight == 0) return;
  const auto [count, index] = heap_.front();
  if (count > 0) Unchain(index);
  Entry& e = entries_[index];
  e.tag.assign(tag.bytes);
  e.hash = hash;
  e.error = count;
  e.is_digest = tag.is_digest;
  e.next = std::exchange(ChainOf(hash), index);
  Raise(0, weight);
}

void TopTags::Window::AddTo(TopSums& sums) const {
  for (const auto [count, index] : heap_) {
    if (count == 0) continue;
    const Entry& e = entries_[index];
    TopEntry& sum = sums[e.tag + (e.is_digest ? '\1' : '\0')];
    sum.tag = e.tag;
    sum.is_digest = e.is_digest;
    sum.count += count;
    sum.error += e.error;
  }
}

void TopTags::Turn(Instant now) {
  if (now < ends_) return;
  if (now < ends_ + kWindow) {
    std::swap(previous_, current_);
  } else {
    previous_.Clear();
  }
  current_.Clear();
  ends_ = now + kWindow;
}

void TopTags::Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now) {
  Turn(now);
  current_.Add(tag, hash, weight);
}

void TopTags::AddTo(TopSums& sums, Instant now) const {
  if (now >= ends_ + kWindow) return;
  current_.AddTo(sums);
  if (now < ends_) previous_.AddTo(sums);
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
