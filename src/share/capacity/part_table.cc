#include "share/capacity/part_table.h"

#include <algorithm>
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

// A fourth of the places is used at most. Both sets of a key are full then less than once in 10^8 times.
void PartTable::Reset(std::size_t entries_max, const SipKey& hash) {
  hash_ = hash;
  entries_.emplace(4 * entries_max);
  size_max_ = entries_max;
  seconds_ = 0;
}

PartTable::Entry* PartTable::Add(const CapacityKey& key) {
  if (Entry* const found = Find(key)) return found;
  if (size() >= size_max_) return nullptr;
  const auto [first, second] = Hashes(key);
  const std::size_t used = entries_->UsedNear(first);
  const bool aside = used >= kWays / 2 && used > entries_->UsedNear(second);
  const std::uint64_t hash = aside ? second : first;
  const std::size_t place = entries_->RoomFor(hash, [](std::size_t) { return std::optional<int>(); });
  if (place == kNone) return nullptr;
  entries_->Put(place, hash);
  seconds_ += aside;
  return &((*entries_)[place] = Entry());
}

void PartTable::Remove(const CapacityKey& key) {
  const std::size_t place = PlaceOf(key);
  if (place == kNone) return;
  seconds_ -= entries_->HashAt(place) == Hashes(key)[1];
  entries_->Remove(place);
}

void PartTable::ForgetParts() {
  for (std::size_t place = 0; size() > 0 && place < entries_->places(); ++place) {
    if (entries_->HashAt(place) != 0) (*entries_)[place].part = kUsual;
  }
}

}    // namespace dthrottle
