// Which of a million networks an address is in: the longest that contains it.
//
// Networks either contain each other or are apart, so together they cut the addresses into intervals, each of which
// belongs to one network or to none. The span from the first interval to the last is divided into equal slots, a few
// intervals to each, and a slot is one cache line: a look-up computes its slot and waits for memory once. Where more
// intervals begin in a slot than a line has room for, or where they lie closer than a line tells apart, the slot is
// divided again. So addresses that are crowded, as those of IPv6 are, cost a step or two more. Built once, never
// changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rule/address.h"

namespace dthrottle {

struct MappedNetwork {
  Network network;
  std::uint16_t value;    // less than NetworkMap::kNone
};

namespace network_map_detail {

__extension__ using Wide = unsigned __int128;

constexpr std::uint16_t kNowhere = 0xffff;

// Key: an unsigned integer.
template <class Key>
class Intervals {
 public:
  struct Interval {
    Key start;    // it ends where the next one begins
    std::uint16_t value;
  };
  Intervals() = default;
  // REQUIRES: the starts ascend.
  explicit Intervals(std::span<const Interval> intervals);
  // The value of the interval that `key` is in, or kNowhere if it is before the first.
  std::uint16_t Find(Key key) const;
  bool empty() const { return lines_.empty(); }

 private:
  static constexpr std::size_t kMost = sizeof(Key) <= sizeof(std::uint64_t) ? 10 : 8;    // starts in a line

  // Slots of 2^shift keys from `base` on.
  struct Division {
    Key base;
    std::uint32_t first, slots;    // its lines
    std::uint16_t shift;
    std::uint16_t before, after;    // values in force in front of the first slot and behind the last
  };
  // A slot. Starts are counted from where it begins, in steps of 2^StepBits keys, less 2^31, because SSE2 compares signed
  // numbers. Places behind them hold the largest number.
  struct alignas(64) Line {
    union {
      std::array<std::int32_t, kMost> starts;
      Division division;
    };
    std::array<std::uint16_t, kMost + 1> values;    // in force in front of the first start, and from each start on
    std::uint16_t divided;                          // whether it is the division that counts
  };
  static_assert(sizeof(Line) == 64);

  static unsigned StepBits(unsigned shift) { return shift > 32 ? shift - 32 : 0; }
  static std::size_t Passed(const Line& line, std::uint32_t at);
  Division Divide(std::span<const Interval> intervals, std::uint16_t before);
  Line MakeLine(std::span<const Interval> its, Key base, unsigned shift, std::uint16_t before);

  Division whole_{0, 0, 0, 0, kNowhere, kNowhere};
  std::vector<Line> lines_;
};

}    // namespace network_map_detail

class NetworkMap {
 public:
  static constexpr std::uint16_t kNone = network_map_detail::kNowhere;
  static constexpr std::size_t kNetworksMax = std::size_t{1} << 22;

  // Where a network is listed twice, the first listing counts. REQUIRES: at most kNetworksMax.
  explicit NetworkMap(std::vector<MappedNetwork> networks);

  // The value of the longest network that contains the address; kNone if no network does. It is no std::optional: to
  // make one is a branch, which waits for the line of the address and with it all look-ups that come next.
  std::uint16_t Find(const IpAddress& address) const;

 private:
  network_map_detail::Intervals<std::uint32_t> v4_;
  network_map_detail::Intervals<std::uint64_t> v6_;                            // of networks up to /64
  network_map_detail::Intervals<network_map_detail::Wide> v6_longer_;    // of the others, which go before
};

}    // namespace dthrottle
