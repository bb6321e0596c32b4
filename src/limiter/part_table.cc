#include "limiter/part_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dthrottle {

Shape PartOf(const Shape& whole, double part) {
  if (part >= 1) return whole;
  constexpr Ticks kFar = Ticks{1} << 60;    // as good as never
  if (!(part > 0)) return {kFar, 0};
  // Rounded down, as in Shape::From.
  const double interval = std::floor(static_cast<double>(whole.interval) / part);
  const Ticks slow = interval < static_cast<double>(kFar) ? static_cast<Ticks>(interval) : kFar;
  // A millionth of a token more, because a third of the whole is a little less than a third.
  return {slow, std::max(whole.depth + (slow >> 20), slow)};
}

void PartTable::Reset(std::size_t entries_max, const SipKey& hash) {
  hash_ = hash;
  entries_.assign(std::bit_ceil(std::max<std::size_t>(2 * entries_max, 2)), Entry());
  size_ = 0;
  size_max_ = entries_max;
}

PartTable::Entry* PartTable::Find(const CapacityKey& key) {
  if (size_ == 0) return nullptr;
  const std::size_t mask = entries_.size() - 1;
  for (std::size_t i = Place(key); entries_[i].used; i = (i + 1) & mask) {
    if (entries_[i].key == key) return &entries_[i];
  }
  return nullptr;
}

PartTable::Entry* PartTable::Add(const CapacityKey& key) {
  if (Entry* const found = Find(key)) return found;
  if (size_ >= size_max_) return nullptr;
  const std::size_t mask = entries_.size() - 1;
  std::size_t i = Place(key);
  while (entries_[i].used) i = (i + 1) & mask;
  entries_[i].key = key;
  entries_[i].used = true;
  ++size_;
  return &entries_[i];
}

// Entries behind the gap move up where they may, so that no look-up ends too early and no mark is left behind.
void PartTable::Remove(const CapacityKey& key) {
  const Entry* const found = Find(key);
  if (found == nullptr) return;
  const std::size_t mask = entries_.size() - 1;
  auto gap = static_cast<std::size_t>(found - entries_.data());
  for (std::size_t i = (gap + 1) & mask; entries_[i].used; i = (i + 1) & mask) {
    if (((i - Place(entries_[i].key)) & mask) < ((i - gap) & mask)) continue;
    entries_[gap] = entries_[i];
    gap = i;
  }
  entries_[gap] = Entry();
  --size_;
}

void PartTable::ForgetParts() {
  for (Entry& entry : entries_) entry.part = kUsual;
}

}    // namespace dthrottle
