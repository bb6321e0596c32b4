// Granted waits: what the questions of a connection have taken to go on later. Until its wait is over, what a tag has
// paid can be given back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

class Waits {
 public:
  // Tags that are kept of a connection. What is granted beyond them cannot be given back.
  static constexpr std::size_t kMax = 2048;

  // A tag, of this hash, has paid, and its question goes on at `until`.
  void Add(std::uint64_t hash, const Query& paid, Instant until, Instant now) {
    if (by_hash_.size() >= forget_at_) {
      std::erase_if(by_hash_, [&](const auto& its) { return its.second.until <= now; });
      forget_at_ = std::max(kForgetAt, 2 * by_hash_.size());
    }
    if (paid.cost == 0 || by_hash_.size() >= kMax) return;
    by_hash_.insert({hash, {until, paid.cost, paid.tag.is_digest, std::string(paid.tag.bytes)}});
  }

  // Calls back(paid) for the wait of the tag that lasts longest. False: none is left.
  template <class Back>
  bool Give(std::uint64_t hash, Instant now, Back&& back) {
    const auto [begin, end] = by_hash_.equal_range(hash);
    const auto last = std::max_element(
        begin, end, [](const auto& a, const auto& b) { return a.second.until < b.second.until; });
    if (last == end || last->second.until <= now) return false;
    back(last->second.paid());
    by_hash_.erase(last);
    return true;
  }

  // The same for each that is left.
  template <class Back>
  void GiveAll(Instant now, Back&& back) {
    for (const auto& [hash, wait] : by_hash_) {
      if (wait.until > now) back(wait.paid());
    }
    by_hash_.clear();
  }

  bool any(Instant now) const {
    return std::ranges::any_of(by_hash_, [&](const auto& its) { return its.second.until > now; });
  }

  static void Fields(auto& state, auto& self) { state(self.by_hash_); }

 private:
  static constexpr std::size_t kForgetAt = 16;

  struct Wait {
    Instant until;
    Cost cost;
    bool is_digest;
    std::string tag;

    Query paid() const { return {{tag, is_digest}, cost}; }
    static void Fields(auto& state, auto& self) { state(self.until, self.cost, self.is_digest, self.tag); }
  };

  std::multimap<std::uint64_t, Wait> by_hash_;    // of their tag
  std::size_t forget_at_ = kForgetAt;
};

}    // namespace dthrottle
