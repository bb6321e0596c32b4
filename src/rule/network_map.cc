#include "rule/network_map.h"

#include <algorithm>

#include "base/check.h"

namespace dthrottle {

namespace network_map_detail {

// -1 is the largest key of each type.
template <class Key>
constexpr Key kLargest = static_cast<Key>(-1);

template <class Key>
Intervals<Key>::Intervals(std::span<const Interval> intervals) {
  if (!intervals.empty()) Divide(intervals, NetworkMap::kNone);
}

// The slots are as many that a line has a quarter to half of the starts that it has room for, if they are spread evenly.
template <class Key>
std::size_t Intervals<Key>::Divide(std::span<const Interval> intervals, std::uint16_t before) {
  const std::size_t number = divisions_.size();
  const Key base = intervals.front().start, span = intervals.back().start - base;
  const std::size_t slots_max = std::max<std::size_t>(intervals.size() * 4 / kMost, 2);
  unsigned shift = 0;
  while (span >> shift >= slots_max) ++shift;
  const auto slots = static_cast<std::size_t>(span >> shift) + 1;
  const std::size_t first = lines_.size();
  divisions_.push_back({base, first, slots, shift, before, intervals.back().value});
  lines_.resize(first + slots);
  auto next = intervals.begin();
  for (std::size_t i = 0; i < slots; ++i) {
    const auto begin = next;
    while (next != intervals.end() && (next->start - base) >> shift == i) ++next;
    const std::span its(begin, next);
    Line line{{}, {}, its.size() > kMost};
    line.starts.fill(kLargest<Key>);
    line.values.fill(its.empty() ? before : its.back().value);
    if (line.divided) {
      line.starts[0] = static_cast<Key>(Divide(its, before));
    } else {
      line.values[0] = before;
      for (std::size_t at = 0; at < its.size(); ++at) {
        line.starts[at] = its[at].start;
        line.values[at + 1] = its[at].value;
      }
    }
    lines_[first + i] = line;
    if (!its.empty()) before = its.back().value;
  }
  return number;
}

template <class Key>
std::uint16_t Intervals<Key>::Find(Key key) const {
  if (divisions_.empty()) return NetworkMap::kNone;
  const Division* division = divisions_.data();
  while (true) {
    if (key < division->base) return division->before;
    const Key slot = (key - division->base) >> division->shift;
    if (slot >= division->slots) return division->after;
    const Line& line = lines_[division->first + static_cast<std::size_t>(slot)];
    if (!line.divided) {
      // Without a branch and in few instructions, so that the processor waits for the lines of several look-ups at once.
      std::size_t passed = 0;
#pragma GCC unroll 10
      for (const Key start : line.starts) passed += start <= key;
      return line.values[passed];
    }
    division = &divisions_[static_cast<std::size_t>(line.starts[0])];
  }
}

}    // namespace network_map_detail

namespace {

using network_map_detail::Intervals;
using network_map_detail::kLargest;
using network_map_detail::Wide;

// The first bits of an address, as many as a Key has.
template <class Key>
Key KeyOf(const IpAddress& address) {
  if constexpr (sizeof(Key) > sizeof(std::uint64_t)) {
    return Key{address.high} << 64 | address.low;
  } else {
    return static_cast<Key>(address.high >> (64 - 8 * sizeof(Key)));
  }
}

// Cuts the keys where a network begins or ends. An interval that begins where the one before does replaces it.
template <class Key>
class Cutter {
 public:
  // REQUIRES: networks come in their order, so that a network comes after those that contain it.
  void Add(const MappedNetwork& mapped) {
    const Key start = KeyOf<Key>(mapped.network.address);
    while (!open_.empty() && open_.back().last < start) Close();
    const bool is_one = mapped.network.bits >= 8 * sizeof(Key);
    open_.push_back({static_cast<Key>(start + (is_one ? Key{0} : kLargest<Key> >> mapped.network.bits)), mapped.value});
    Cut(start, mapped.value);
  }
  Intervals<Key> Finish() {
    while (!open_.empty()) Close();
    return Intervals<Key>(intervals_);
  }

 private:
  struct Open {
    Key last;
    std::uint16_t value;
  };

  void Close() {
    const Key last = open_.back().last;
    open_.pop_back();
    if (last != kLargest<Key>) Cut(static_cast<Key>(last + 1), open_.empty() ? NetworkMap::kNone : open_.back().value);
  }
  void Cut(Key start, std::uint16_t value) {
    if (!intervals_.empty() && intervals_.back().start == start) intervals_.pop_back();
    if (intervals_.empty() || intervals_.back().value != value) intervals_.push_back({start, value});
  }

  std::vector<Open> open_;    // networks that contain each other, the longest last
  std::vector<typename Intervals<Key>::Interval> intervals_;
};

}    // namespace

NetworkMap::NetworkMap(std::vector<MappedNetwork> networks) {
  DT_CHECK(networks.size() <= kNetworksMax);
  std::ranges::stable_sort(networks, {}, &MappedNetwork::network);
  const auto same = std::ranges::unique(networks, {}, &MappedNetwork::network);
  networks.erase(same.begin(), same.end());
  Cutter<std::uint32_t> v4;
  Cutter<std::uint64_t> v6;
  Cutter<Wide> v6_longer;
  for (const MappedNetwork& mapped : networks) {
    if (!mapped.network.address.is_v6) {
      v4.Add(mapped);
    } else if (mapped.network.bits <= 64) {
      v6.Add(mapped);
    } else {
      v6_longer.Add(mapped);
    }
  }
  v4_ = v4.Finish();
  v6_ = v6.Finish();
  v6_longer_ = v6_longer.Finish();
}

std::optional<std::uint16_t> NetworkMap::Find(const IpAddress& address) const {
  std::uint16_t value = kNone;
  if (!address.is_v6) {
    value = v4_.Find(KeyOf<std::uint32_t>(address));
  } else if (value = v6_longer_.Find(KeyOf<Wide>(address)); value == kNone) {
    value = v6_.Find(KeyOf<std::uint64_t>(address));
  }
  return value != kNone ? std::optional(value) : std::nullopt;
}

}    // namespace dthrottle
