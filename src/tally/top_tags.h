// The most frequent tags of the last minute or two, in fixed memory: Space-Saving (Metwally, Agrawal and El Abbadi,
// ICDT 2005) over two windows of a minute, the current one and the one before.
//
// With k entries, every tag with more than 1/k of a window's weight is present, and no count is too high by more than
// `error`. Windows, and not a count since the start, because the question is who is being throttled now.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

// How often one tag was seen.
struct TopEntry {
  std::string tag;
  bool is_digest = false;
  std::uint64_t count = 0;
  std::uint64_t error = 0;    // how much too high the count may be
};

// Counts of several sketches, by tag; digests are told from tags by a byte behind them.
using TopSums = std::unordered_map<std::string, TopEntry>;

// Most frequent first, at most n.
std::vector<TopEntry> Largest(const TopSums& sums, std::size_t n);

class TopTags {
 public:
  static constexpr std::size_t kEntries = 256;
  static constexpr Duration kWindow = std::chrono::minutes(1);

  void Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now);

  // Adds what both windows hold to `sums`, tag by tag.
  void AddTo(TopSums& sums, Instant now) const;

 private:
  // The tags of a window: a heap, the least frequent first, and chains by hash to find a tag in it. A sample passes over
  // a few places of the heap and of one chain, however many tags there are.
  class Window {
   public:
    Window();

    void Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight);
    void Clear();
    void AddTo(TopSums& sums) const;

   private:
    using Index = std::uint16_t;
    static constexpr Index kNone = kEntries;
    struct Place {
      std::uint64_t count;
      Index entry;
    };
    struct Entry {
      std::string tag;
      std::uint64_t hash = 0, error = 0;
      bool is_digest = false;
      Index next = kNone;    // of the chain
      Index place = 0;       // in the heap
    };

    Index& ChainOf(std::uint64_t hash) { return chains_[hash % chains_.size()]; }
    void Put(std::size_t place, Place moved);
    void Raise(std::size_t place, std::uint64_t weight);
    void Unchain(Index entry);

    std::array<Place, kEntries> heap_;    // a count of 0: no tag is there yet
    std::array<Index, kEntries> chains_;
    std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
  };

  void Turn(Instant now);

  Window current_, previous_;
  Instant ends_{};    // of the current window
};

}    // namespace dthrottle
