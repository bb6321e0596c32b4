// The most frequent tags of the last minute or two, in fixed memory: Space-Saving (Metwally, Agrawal and El Abbadi,
// ICDT 2005) over two windows of a minute, the current one and the one before.
//
// With k entries, every tag with more than 1/k of a window's weight is present, and no count is too high by more than
// `error`. Windows, and not a count since the start, because the question is who is being throttled now.
#pragma once

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

  TopTags();

  void Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now);

  // Adds what both windows hold to `sums`, tag by tag.
  void AddTo(TopSums& sums, Instant now) const;

 private:
  // What is looked through for each sample stands apart from the rest, which is four times as long.
  struct Key {
    std::uint64_t hash, count;
  };
  struct Window {
    std::vector<Key> keys;
    std::vector<TopEntry> entries;    // with the same indices; their counts are those of the keys

    void Clear() { keys.clear(), entries.clear(); }
  };

  void Turn(Instant now);

  Window current_, previous_;
  Instant ends_{};    // of the current window
};

}    // namespace dthrottle
