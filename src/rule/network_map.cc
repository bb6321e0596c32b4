#include "rule/network_map.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace dthrottle {

namespace network_map_detail {

// -1 is the largest key of each type.
template <class Key>
constexpr Key kLargest = static_cast<Key>(-1);

// Numbers in the same order.
constexpr std::int32_t Signed(std::uint32_t n) {
  return static_cast<std::int32_t>(n ^ 0x80000000);
}

template <class Key>
Intervals<Key>::Intervals(std::span<const Interval> intervals) {
  if (!intervals.empty()) whole_ = Divide(intervals, kNowhere);
}

// The slots are as many that a line has a quarter to half of the starts that it has room for, if they are spread evenly.
// Where starts are crowded, most slots would be empty: then they are fewer.
template <class Key>
typename Intervals<Key>::Division Intervals<Key>::Divide(std::span<const Interval> intervals, std::uint16_t before) {
  constexpr std::size_t kEmptyMost = 7;    // slots for each that has a start
  const Key base = intervals.front().start, span = intervals.back().start - base;
  const std::size_t slots_max = std::max<std::size_t>(intervals.size() * 4 / kMost, 2);
  unsigned shift = 0;
  const auto slots = [&] { return static_cast<std::size_t>(span >> shift) + 1; };
  const auto used = [&] {
    std::size_t n = 1;
    for (std::size_t i = 1; i < intervals.size(); ++i) {
      n += (intervals[i].start - base) >> shift != (intervals[i - 1].start - base) >> shift;
    }
    return n;
  };
  while (span >> shift >= slots_max) ++shift;
  while (slots() > (1 + kEmptyMost) * used()) ++shift;

  const Division division{base, static_cast<std::uint32_t>(lines_.size()), static_cast<std::uint32_t>(slots()),
                          static_cast<std::uint16_t>(shift), before, intervals.back().value};
  lines_.resize(lines_.size() + division.slots);
  auto next = intervals.begin();
  for (std::size_t i = 0; i < division.slots; ++i) {
    const auto begin = next;
    while (next != intervals.end() && (next->start - base) >> shift == i) ++next;
    const std::span its(begin, next);
    const Line line = MakeLine(its, base + (static_cast<Key>(i) << shift), shift, before);
    lines_[division.first + i] = line;
    if (!its.empty()) before = its.back().value;
  }
  return division;
}

// The line of a slot that begins with `base`.
template <class Key>
typename Intervals<Key>::Line Intervals<Key>::MakeLine(std::span<const Interval> its, Key base, unsigned shift,
                                                       std::uint16_t before) {
  const unsigned step_bits = StepBits(shift);
  const auto between_steps = [&](const Interval& interval) {
    return ((interval.start - base) & ((Key{1} << step_bits) - 1)) != 0;
  };
  Line line{};
  line.divided = its.size() > kMost || std::ranges::any_of(its, between_steps);
  if (line.divided) {
    line.division = Divide(its, before);
    return line;
  }
  line.starts.fill(std::numeric_limits<std::int32_t>::max());
  line.values.fill(its.empty() ? before : its.back().value);
  line.values[0] = before;
  for (std::size_t i = 0; i < its.size(); ++i) {
    line.starts[i] = Signed(static_cast<std::uint32_t>((its[i].start - base) >> step_bits));
    line.values[i + 1] = its[i].value;
  }
  return line;
}

// How many starts are not behind `at`. Without a branch and in few instructions, so that the processor waits for the
// lines of several look-ups at once.
template <class Key>
inline std::size_t Intervals<Key>::Passed(const Line& line, std::uint32_t at) {
#ifdef __SSE2__
  const auto* fours = reinterpret_cast<const __m128i*>(&line);    // the starts, and values that do not count
  const __m128i wanted = _mm_set1_epi32(Signed(at));
  const auto behind = [&](int i) { return _mm_cmpgt_epi32(_mm_load_si128(fours + i), wanted); };
  const __m128i low = _mm_packs_epi32(behind(0), behind(1)), high = _mm_packs_epi32(behind(2), _mm_setzero_si128());
  const auto first_behind = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
  return static_cast<std::size_t>(std::countr_zero(first_behind | 1u << kMost));
#else
  std::size_t passed = 0;
  for (const std::int32_t start : line.starts) passed += start <= Signed(at);
  return passed;
#endif
}

template <class Key>
inline std::uint16_t Intervals<Key>::Find(Key key) const {
  const Division* division = &whole_;
  while (true) {
    if (key < division->base) return division->before;
    const Key from_base = key - division->base, slot = from_base >> division->shift;
    if (slot >= division->slots) return division->after;
    const Line& line = lines_[division->first + static_cast<std::size_t>(slot)];
    if (!line.divided) {
      const Key in_slot = from_base & ((Key{1} << division->shift) - 1);
      const auto at = static_cast<std::uint32_t>(in_slot >> StepBits(division->shift));
      return line.values[Passed(line, at)];
    }
    division = &line.division;
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
  const auto same = [](const MappedNetwork& a, const MappedNetwork& b) { return a.network == b.network; };
  networks.erase(std::unique(networks.begin(), networks.end(), same), networks.end());
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

std::uint16_t NetworkMap::Find(const IpAddress& address) const {
  if (!address.is_v6) return v4_.Find(KeyOf<std::uint32_t>(address));
  const std::uint16_t value = v6_longer_.empty() ? kNone : v6_longer_.Find(KeyOf<Wide>(address));
  return value != kNone ? value : v6_.Find(KeyOf<std::uint64_t>(address));
}

}    // namespace dthrottle
