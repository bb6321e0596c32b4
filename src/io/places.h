// Counts the places that each source holds of a listening socket, so that no source takes all of them.
//
// A source is a TCP address (of IPv6 its /64, which one host has whole) or the user at the other end of a Unix socket.
// Connections belong to servers, some of them libraries, that close them when they like and tell nobody. So nothing is
// given back here: the kernel numbers every socket once (SO_COOKIE), and a descriptor that is gone or has another
// number holds no place any more. A few are looked at with each connection, more when there seems to be no place, and all
// of them now and then before one is turned away.
//
// What it costs: a connection that has ended may count for a while, so a source that is at its bound may be turned away
// though some of its connections ended less than half a second ago.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/time.h"

namespace dthrottle {

struct PlaceBounds {
  std::uint32_t total = 0;
  std::uint32_t per_source = 0;
};

// What a source may have of `total` places: that part, and a few at least.
std::uint32_t PlacesPerSource(std::uint32_t total, double part);

// Divides descriptors among those who want some: each gets what it wants as long as that is no more than its part by
// weight of what the others leave.
struct PlacesWanted {
  std::uint32_t want;
  std::uint32_t weight;
};
std::vector<std::uint32_t> DividePlaces(std::uint64_t available, const std::vector<PlacesWanted>& wanted);

class Places {
 public:
  enum class Answer { kTaken, kFull, kSourceFull };

  explicit Places(PlaceBounds bounds) : bounds_(bounds) {}

  void set_bounds(PlaceBounds bounds) { bounds_ = bounds; }

  // Whether a connection that was accepted just now may stay. What may not is the caller's to close.
  Answer Take(int fd, Instant now);

  // Whether two connections are of one source.
  static bool SameSource(int one, int other) { return SourceOf(one) == SourceOf(other); }

  // A connection that another process let in: it counts, and stays.
  void Keep(int fd);

 private:
  using Source = std::array<std::uint8_t, 12>;    // family, then address or user
  struct Entry {
    int fd;
    std::uint64_t cookie;
    Source source;
  };

  static Source SourceOf(int fd);
  void Add(int fd, const Source& source);
  void Sweep(std::size_t entries);

  PlaceBounds bounds_;
  std::vector<Entry> entries_;
  std::size_t next_ = 0;    // to be looked at
  Instant next_round_{};    // when all may be looked at again
  std::map<Source, std::uint32_t> by_source_;
};

}    // namespace dthrottle
