// Tags that this host refuses while it has nothing to report of them, where other hosts own tags.
//
// An owner answers what it is told of. A host that refuses a tag serves no hits of it, so it names the tag once a
// period without any, and hears from the owner when tokens have come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"

namespace dthrottle {

class Denied {
 public:
  // With the tag's shard locked, any thread: a query was refused. In a full set one that has been told makes room.
  void Note(std::uint64_t hash, const Tag& tag, Instant now) {
    const std::size_t at = tags_.FindOrPut(hash, [&](std::size_t place) {
      return tags_.untold(place) ? std::nullopt : std::optional(tags_[place].refused);
    });
    if (at == tags_.kNone) return;
    One& its = tags_[at];
    if (its.refused == Instant()) its.tag = KeptTag(tag);
    its.refused = now;
    tags_.SetUntold(at);
  }

  // ---- The owner's thread ----

  bool any_untold() const { return tags_.any_untold(); }

  // Calls tell(hash, tag, locked) for each tag that was refused since it was told, until it returns false: there is no
  // room now. True: there is more to tell.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, Tell&& tell) {
    return tags_.TellSome(lock, [&](std::size_t at, auto& locked) {
      return tell(tags_.HashAt(at), tags_[at].tag.tag(), locked);
    });
  }

 private:
  struct One {
    KeptTag tag;
    Instant refused{};    // latest; Instant(): the entry is new
  };
  static constexpr std::size_t kTags = 7 * 64, kWays = 7;

  ToldTable<One, kWays> tags_{kTags};
};

}    // namespace dthrottle
