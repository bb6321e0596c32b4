// What this host may serve of a tag, divided among the tags that are charged with it (Rule::among): DST section 7,
// Algorithms 1 and 2.
//
// Once a cycle what the tags asked for is compared with what the bucket of the tag that they are charged with can give.
// If that is less, Among::kRatio serves every query with the same probability, so that all tags keep the same share of
// what they ask for, and Among::kLevel serves every tag up to the same level, so that only the largest are cut. The
// bucket has the last word in either case, so the limit holds whatever is counted here.
//
// Where hosts share the limit by reports, a tag's level is what all hosts together serve of it. Every host adds to what
// is asked here what peers report of the tag, and finds nearly the same level, because all of them see nearly the same
// bucket. A tag that asks for more than its level gets on each host the part of the level that the host has served of it
// lately (`here` of `here` and `there`): these parts sum to one whatever each host knows, so the tag's hits do, and no
// host asks another.
//
// Departures from the paper, which gives each tag a number of requests for the whole cycle: a tag spends its level as
// time passes, and some of it at once, because the bucket may hold less than a cycle's tokens. One that asked for nothing
// in the cycle before is served, because its limit would be 0. Where there is enough nobody is cut, so what a tag did not
// ask for in the last cycle is not lost (capacity/divide.h: `reserve`).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/prng.h"
#include "base/side_table.h"
#include "base/time.h"
#include "bucket/bucket.h"
#include "rule/rule.h"

namespace dthrottle {

// How one tag's limit is divided now.
struct DividedAmong {
  double ratio = 1;                                          // of what is asked for that can be served; 1: all
  double level = std::numeric_limits<double>::infinity();    // tokens/s, the most that one tag gets; infinite: no tag is cut
};

struct AmongCounts {
  std::uint64_t divided = 0;    // tags that are divided among others, now
  std::uint64_t cut = 0;        // queries refused because their tag had its part
  std::uint64_t crowded = 0;    // queries that no part was kept for, because too many tags asked
};

// Guarded by the lock of the shard of the tag that is divided, as every SideTable.
class AmongTags {
 public:
  static constexpr Duration kCycle = std::chrono::seconds(1);
  static constexpr std::size_t kTagsMax = 512;       // that are divided at once; others are served first come
  static constexpr std::size_t kMembersMax = 256;    // of each, in one cycle; others are served first come

  AmongTags() : groups_(kTagsMax) {}

  // A query of a tag that is charged to another one, which is divided.
  struct Charge {
    std::uint64_t divided, member;    // hashes of the two
    Cost cost;
    Among among;
    double weight = 1;        // of the member, at kLevel
    std::size_t hosts = 1;    // that share the limit of the divided tag by reports, at kLevel
    Duration period{};        // of these reports
  };

  // Whether the division lets the query through.
  bool Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const;

  // Whether Count will divide, and goes by the level that it is told.
  bool IsDue(std::uint64_t divided, Instant now) const;
  // The query was served, or it was refused by the division or by the bucket of the divided tag, which has the shape and
  // `level` tokens.
  void Count(const Charge& charge, bool served, const Shape& shape, Tokens level, Instant now);
  // A peer has served so many hits of the member. Nothing, where nobody asked for the divided tag here lately.
  void Hear(std::uint64_t divided, std::uint64_t member, double weight, std::uint64_t hits, Instant now);
  void CountCut() { cut_.fetch_add(1, std::memory_order_relaxed); }

  DividedAmong Of(std::uint64_t divided, Instant now) const;
  AmongCounts counts() const { return {groups_.used(), cut_.load(), crowded_.load()}; }

 private:
  static constexpr double kUncut = std::numeric_limits<double>::infinity();

  struct Member {
    Tokens debt = 0;    // at `since`; it drains at `most`
    Instant since{};
    Tokens asked = 0, served = 0, heard = 0;     // in this cycle: here, and what peers said they served
    double weight = 1;
    double most = kUncut;                        // tokens/s that are served here
    double wanted = 0, here = 0, there = 0;      // tokens/s over `memory`: asked and served here, served by peers
    double request = 0;                          // tokens/s that are asked of all hosts

    bool idle() const { return asked == 0 && debt == 0 && wanted + there < 1e-3; }
  };
  struct Group {
    Instant began{};     // this cycle
    Duration memory{};   // how long rates are measured over; 0: the cycle
    std::size_t hosts = 1;
    Tokens asked = 0;    // by all members in the cycle
    DividedAmong now;
    std::size_t size = 0;
    std::array<std::uint64_t, kMembersMax> hashes;    // apart from members: a search reads no more than these
    std::array<Member, kMembersMax> members;
  };
  static constexpr std::size_t kWays = 8;

  // A group that nobody asked about for longer says nothing any more.
  static bool IsOld(const Group& group, Instant now) { return now - group.began >= 2 * kCycle + group.memory; }
  static const Member* Find(const Group& group, std::uint64_t hash);
  static Tokens DebtAt(const Member& member, Instant now);
  static void Divide(Group& group, Among among, Tokens enough, Instant now);
  static double LevelNow(Group& group, Tokens enough, double seconds, double kept, Instant now);
  static double MostHere(const Group& group, const Member& member, double level);
  Group* FindOrAdd(std::uint64_t divided, Instant now);
  Member* FindOrAdd(Group& group, std::uint64_t hash, double weight);

  SideTable<Group, kWays> groups_;
  std::atomic<std::uint64_t> cut_{0}, crowded_{0};
};

}    // namespace dthrottle
