// Penalties of tags that this host owns, of which other sites are to be told: each once, since what sites say is repaired,
// and not those that another site has said itself. For one thread, as SiteSums.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/tag.h"
#include "base/time.h"

namespace dthrottle {

class SitePenalties {
 public:
  static constexpr std::size_t kMost = 8192;    // that wait, and that are known of other sites

  // The tag of that hash is penalized until then; until now or before: no longer.
  void Began(std::uint64_t hash, const Tag& said, Instant until, Instant now) {
    if (const auto known = heard_.find(hash); known != heard_.end()) {
      const bool same = until <= now ? known->second <= now : Distance(until, known->second) <= kSame;
      if (same) return;
      heard_.erase(known);
    }
    if (untold_.size() >= kMost) untold_.pop_front();    // that one begins there by itself
    untold_.push_back({KeptTag(said), until});
  }

  // Another site has said so.
  void Heard(std::uint64_t hash, Instant until, Instant now) {
    if (heard_.size() >= kMost) std::erase_if(heard_, [now](const auto& its) { return its.second <= now; });
    if (heard_.size() < kMost) heard_[hash] = until;
  }

  bool any() const { return !untold_.empty(); }
  // Calls tell(said, until) for each, until it is false: there is no room for the rest now.
  template <class Tell>
  void TellSome(Tell&& tell) {
    while (!untold_.empty() && tell(untold_.front().said.tag(), untold_.front().until)) untold_.pop_front();
  }

 private:
  struct Untold {
    KeptTag said;
    Instant until;
  };

  static constexpr Duration kSame = std::chrono::milliseconds(10);    // it is said in whole milliseconds
  static Duration Distance(Instant a, Instant b) { return a < b ? b - a : a - b; }

  std::deque<Untold> untold_;
  std::unordered_map<std::uint64_t, Instant> heard_;    // by hash: until when, by the latest word
};

}    // namespace dthrottle
