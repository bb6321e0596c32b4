// Tags that one query thread names to the owner of the limiter: one tag hardly more than once a tick, and no more tags
// than there is room for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/side_table.h"
#include "base/spsc_ring.h"
#include "base/tag.h"
#include "base/time.h"
#include "bucket/bucket.h"

namespace dthrottle {

struct NotedTag {
  KeptTag kept;
  LimitIndex limit = 0;    // under the rules in force
};

class Notes {
 public:
  void Note(const Tag& tag, std::uint64_t hash, LimitIndex limit, Instant now) {
    std::size_t place = again_.Find(hash);
    if ((place != again_.kNone && now < again_[place]) || noted_.full()) return;
    if (place == again_.kNone) place = again_.RoomFor(hash, [](std::size_t) { return std::optional(0); });
    if (place == again_.kNone) return;
    again_[place] = now + kTick;
    again_.Put(place, hash);
    noted_.TryPush({KeptTag(tag), limit});
  }

  // The owner's thread.
  bool Take(NotedTag& noted) { return noted_.TryPop(noted); }

 private:
  static constexpr std::size_t kMax = 256;
  static constexpr Duration kTick = std::chrono::milliseconds(100);

  SpscRing<NotedTag> noted_{kMax};
  SideTable<Instant, 1> again_{kMax};    // when a tag that was noted may be noted again
};

}    // namespace dthrottle
