// Tags that are charged to divided ones, their members, and what is counted of each. For AmongTags, which has the law.
//
// Their number is bounded. Divided tags of one shard share the sets that their members are in, and that shard's lock
// guards them. When a set is full, the member of the same divided tag that was asked for least makes room.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/side_table.h"
#include "base/time.h"
#include "base/tokens.h"
#include "share/among/used_part.h"

namespace dthrottle {

// Tokens that were asked for and served, or how many a second.
struct MemberUse {
  double asked = 0, served = 0;
};

struct AmongMember {
  static constexpr double kUncut = std::numeric_limits<double>::infinity();

  std::uint64_t divided, name;    // hash of the one, AmongTags::NameOf the other
  Tokens debt = 0;                // at `since`; it drains at `most`
  Instant since{};
  Cost dearest = 1;                // query that was served
  MemberUse counted{}, heard{};    // in this cycle: here, and what peers said
  MemberUse untold{};              // here, and the owner of the divided tag has not been told
  MemberUse to_sites{};            // here and of peers, and other sites have not been told
  double told = 0, told_before = 0;    // tokens/s served here: what it has been told, and had been the time before,
  Instant told_at{};                   // then
  double all = 0, of_all = 0;    // tokens/s by the owner's word: served by all hosts, and of it here
  double weight = 1;
  double weight_said = 0;       // the largest in this cycle; 0: none
  double most = kUncut;         // tokens/s that are served here
  MemberUse here{}, there{};    // tokens/s over a while; what peers are asked for is known to an owner only
  double request = 0;           // tokens/s that are asked of all hosts
  UsedParts used{};

  double lately() const { return counted.asked + heard.served + heard.asked + here.asked + there.served + there.asked; }
  Tokens DebtAt(Instant now) const { return debt == 0 ? 0 : std::max(0.0, debt - most * Seconds(now - since)); }
  bool idle() const { return counted.asked == 0 && debt == 0 && lately() < 1e-3; }
};

class AmongMembers {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 18;    // of all divided tags
  static constexpr std::size_t kMostOfOne = 4096;

  // The members of one divided tag.
  class List {
    friend class AmongMembers;

    std::uint32_t size_ = 0;
    std::array<std::uint32_t, kMostOfOne> places_;
  };

  AmongMembers() : members_(kMost) {}

  // Null: there is none.
  AmongMember* Find(std::uint64_t divided, std::uint64_t name) {
    const std::size_t place = members_.Find(KeyOf(divided, name));
    return place != members_.kNone ? &members_[place] : nullptr;
  }
  const AmongMember* Find(std::uint64_t divided, std::uint64_t name) const {
    const std::size_t place = members_.Find(KeyOf(divided, name));
    return place != members_.kNone ? &members_[place] : nullptr;
  }

  struct Added {
    AmongMember* member = nullptr;    // null: there is no room
    bool replaces = false;            // one of the same divided tag
  };
  // `is_old(hash)`: nobody asks for that divided tag any more. REQUIRES: there is none of that name.
  template <class IsOld>
  Added Add(List& list, std::uint64_t divided, std::uint64_t name, IsOld&& is_old) {
    const std::uint64_t key = KeyOf(divided, name);
    const std::size_t place = members_.RoomFor(key, [&](std::size_t there) -> std::optional<double> {
      const AmongMember& member = members_[there];
      if (member.divided == divided) return member.lately();
      return is_old(member.divided) ? std::optional(-1.0) : std::nullopt;
    });
    if (place == members_.kNone) return {};
    const bool replaces = members_.HashAt(place) != 0 && members_[place].divided == divided;
    if (!replaces) {
      if (list.size_ == kMostOfOne) return {};
      list.places_[list.size_++] = static_cast<std::uint32_t>(place);
    }
    members_.Put(place, key);
    members_[place] = AmongMember{.divided = divided, .name = name};
    return {&members_[place], replaces};
  }

  template <class Each>
  void ForEach(const List& list, Each&& each) {
    for (std::size_t i = 0; i < list.size_; ++i) each(members_[list.places_[i]]);
  }
  // The same until each(member) is false; whether it never was.
  template <class Each>
  bool ForEachWhile(const List& list, Each&& each) {
    for (std::size_t i = 0; i < list.size_; ++i) {
      if (!each(members_[list.places_[i]])) return false;
    }
    return true;
  }
  // Keeps those for which keep(member) is true.
  template <class Keep>
  void Retain(List& list, Keep&& keep) {
    std::uint32_t size = 0;
    for (std::size_t i = 0; i < list.size_; ++i) {
      const std::uint32_t place = list.places_[i];
      if (keep(members_[place])) {
        list.places_[size++] = place;
      } else {
        members_.Remove(place);
      }
    }
    list.size_ = size;
  }
  // A key for a name of the divided tag, in the sets of its shard.
  static std::uint64_t KeyOf(std::uint64_t divided, std::uint64_t name) { return SideKey(divided, name); }

  // Some may have made room for members of other tags, if nobody asked for this one any more.
  void Clear(List& list, std::uint64_t divided) {
    for (std::size_t i = 0; i < list.size_; ++i) {
      const std::uint32_t place = list.places_[i];
      if (members_.HashAt(place) != 0 && members_[place].divided == divided) members_.Remove(place);
    }
    list.size_ = 0;
  }

 private:
  static constexpr std::size_t kWays = 8;
  static constexpr unsigned kShardBits = 6;
  static_assert(SideTable<AmongMember, kWays>::kSetsMin == std::size_t{1} << kShardBits);    // no fewer than shards

  SideTable<AmongMember, kWays> members_;
};

}    // namespace dthrottle
