// The most frequent tags of the last minute or two, in fixed memory: Space-Saving (Metwally, Agrawal and El Abbadi,
// ICDT 2005) over two windows of a minute, the current one and the one before.
//
// With k entries, every tag with more than 1/k of a window's weight is present, and no count is too high by more than
// `error`. Windows, and not a count since the start, because the question is who is being throttled now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

class TopTags {
 public:
  static constexpr std::size_t kEntries = 256;
  static constexpr Duration kWindow = std::chrono::minutes(1);

  struct Entry {
    std::uint64_t hash;
    std::uint64_t count;
    std::uint64_t error;    // how much too high the count may be
    std::string tag;
    bool is_digest;
  };

  void Add(const Tag& tag, std::uint64_t hash, std::uint64_t weight, Instant now);

  // Adds what both windows hold to `sums`, tag by tag.
  void AddTo(std::vector<Entry>& sums, Instant now) const;

 private:
  using Window = std::vector<Entry>;

  static void Merge(Window& window, const Entry& entry, std::size_t entries_max);
  void Turn(Instant now);

  Window current_, previous_;
  Instant ends_{};    // of the current window
};

// Most frequent first, at most n.
std::vector<TopTags::Entry> Largest(std::vector<TopTags::Entry> entries, std::size_t n);

}  // namespace dthrottle
