// How often tags were refused lately, on all hosts that share their limit, which is what penalties come of; and what
// the other hosts have not heard of that yet.
//
// The count of a tag begins with a refusal and lasts as long as its rule says; then it begins anew. A host tells the
// others how often it has refused a tag: once a period, and soon if that is 1 / (2 x hosts) of what is missing to a
// penalty. So all hosts together keep half of that to themselves at most, and a client that goes from host to host is
// found out as one that stays is.
//
// All is bounded. A flood of tags that are refused makes counts coarser: tags that this host has refused least make
// room. What a peer says takes what is free or over, and else the place of a tag that only a peer with more there has
// told of. A peer that lies brings few tags beyond half of a penalty: the rest they have to earn here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/side_table.h"
#include "base/tag.h"
#include "base/time.h"
#include "base/told_table.h"
#include "rule/rule.h"

namespace dthrottle {

class Strikes {
 public:
  static constexpr std::size_t kCounted = std::size_t{1} << 16;    // tags, about
  static constexpr std::size_t kUntold = 7 * 256;                  // of which peers are to hear

  // The same as Penalties::Enable and SetWake.
  void Enable();
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

  // ---- With the shard of the tag locked, any thread ----

  // This host has refused the tag, whose limit so many hosts share. Returns the refusals that count, this one included.
  std::uint32_t Refused(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::size_t hosts, Instant now);
  // The peer has, so often. Returns the same; 0: there is no room for it. Peers' refusals make up less than half of a
  // penalty, but where `may()`: the peer may say more.
  std::uint32_t Heard(std::uint64_t hash, std::uint32_t peer, std::uint64_t refusals, const Penalty& terms, Instant now,
                      const std::function<bool()>& may);
  bool Counts(std::uint64_t hash) const { return counts_->Find(hash) != Table::kNone; }
  // The tag's count begins anew, and peers do not hear of what it was.
  void Forget(std::uint64_t hash);

  // ---- For the owner's thread, which locks the shard of a hash by `lock(hash)` ----

  // Something is to be told soon.
  bool any_urgent() const { return untold_ != nullptr && untold_->any_untold(); }
  // Calls tell(tag, refusals, locked) for up to `most` tags of which peers are to hear soon, until it returns false:
  // there is no room now. Returns whether there was.
  template <class Lock, class Tell>
  bool TellSome(Lock&& lock, std::size_t most, Instant now, Tell&& tell) {
    if (untold_ == nullptr) return true;
    bool room = true;
    untold_->TellSome(lock, [&](std::size_t place, auto& locked) {
      if (most == 0) return false;
      const Untold& its = (*untold_)[place];
      room = its.until <= now || tell(its.tag.tag(), its.refusals, locked);
      if (!room) return false;
      --most;
      untold_->Remove(place);
      return true;
    });
    return room;
  }
  // All that peers have not heard is to be told soon.
  template <class Lock>
  void TellRest(Lock&& lock) {
    if (untold_ == nullptr || untold_->used() == 0) return;
    untold_->ForEach(lock, [&](std::size_t place, auto&) { untold_->SetUntold(place); });
  }

  std::uint64_t heard() const { return heard_.load(std::memory_order_relaxed); }
  std::uint64_t untold() const { return not_told_.load(std::memory_order_relaxed); }    // for want of room
  // Peers' refusals that there was no room for, or that made room.
  std::uint64_t crowded() const { return crowded_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kWays = 8;
  struct Count {
    Instant since{};
    std::uint32_t here = 0, elsewhere = 0;
    std::uint32_t peer = 0;    // that has told of the tag; where `here` is 0
    std::uint32_t all() const { return here + elsewhere; }
  };
  struct Untold {
    KeptTag tag;
    Instant until{};    // the refusals count
    std::uint32_t refusals = 0;
  };

  using Table = SideTable<Count, kWays>;
  using Worth = std::pair<std::size_t, std::uint32_t>;

  std::size_t HeardNear(std::uint64_t hash, std::uint32_t peer) const {
    return counts_->CountNear(hash, [&](const Count& its) { return its.here == 0 && its.peer == peer; });
  }
  template <class WorthOf>
  Count* CountOf(std::uint64_t hash, const Penalty& terms, Instant now, WorthOf&& worth);
  void Keep(const Tag& tag, std::uint64_t hash, const Penalty& terms, std::uint64_t missing, std::size_t hosts,
            Instant now);

  std::unique_ptr<Table> counts_;
  std::unique_ptr<ToldTable<Untold, 7>> untold_;
  std::function<void()> wake_;
  std::atomic<std::uint64_t> heard_{0}, not_told_{0}, crowded_{0};
};

}    // namespace dthrottle
