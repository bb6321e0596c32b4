// A tag that is divided among others, for AmongTags: its cycle, the level, and what each member may have.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/tag.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "rule/rule.h"
#include "share/among/members.h"
#include "share/among/used_part.h"

namespace dthrottle {

// How one tag's limit is divided now.
struct DividedAmong {
  double ratio = 1;    // of what is asked for that can be served; 1: all
  // tokens/s, the most that one tag gets; infinite: no tag is cut.
  double level = std::numeric_limits<double>::infinity();
};

struct AmongGroup {
  static constexpr Duration kCycle = std::chrono::seconds(1);
  static constexpr double kGrantedMin = 0.01;    // of what is asked for; less is not believed

  KeptTag tag;
  std::uint64_t hash = 0;
  Instant began{};         // this cycle
  Shape its_shape{};       // of the tag's bucket
  Duration memory{};       // how long rates are measured over; 0: the cycle
  std::size_t hosts = 1;
  Tokens asked = 0;        // by all members in the cycle
  UsedParts used;          // by all members
  DividedAmong current;
  bool owned = false;                  // peers say what they are asked for
  Instant said_at = Instant::min();    // by the owner: the level
  AmongMembers::List list;

  // Nobody has asked about it for so long that it says nothing any more.
  bool IsOld(Instant now) const { return now - began >= 2 * kCycle + memory; }
  // The cycle is over. Each peer has told an owner what it is asked for once in one.
  bool IsDue(Instant now) const { return now - began >= (owned ? std::max(kCycle, memory / 2) : kCycle); }
  // The owner's word still counts.
  bool IsSaid(Instant now) const { return said_at != Instant::min() && now - said_at < 2 * (kCycle + memory); }

  // Begins the first cycle, without members.
  void Begin(AmongMembers& members, Instant now);
  // Begins another cycle. A member's part in it goes by what was asked in the last one, and by the bucket, which has
  // the shape and `level` tokens.
  void Divide(AmongMembers& members, Among among, const Shape& shape, Tokens level, Instant now);

  // What the member may have of its level at once.
  Tokens AtOnce(const AmongMember& member, Instant now) const;
  // Gives the member its part of this level.
  void Allow(AmongMember& member, double level, Instant now) const;
  // The owner has been told what was untold of the member.
  void Told(AmongMember& member, Instant now) const;

 private:
  static constexpr double kUncut = AmongMember::kUncut;

  double LevelNow(AmongMembers& members, Tokens enough, double seconds, double kept, Instant now);
  double LevelOfAll(AmongMembers& members, Tokens enough, double seconds) const;
  void Measure(AmongMembers& members, double seconds, double kept, Instant now);
  double KeptOver(Duration passed) const;
  double MostHere(const AmongMember& member, double level, Instant now) const;
};

}    // namespace dthrottle
