#include "share/among/among_tags.h"

#include <algorithm>
#include <span>

#include "capacity/divide.h"
#include "shed/curve.h"

namespace dthrottle {

namespace {

// The tokens that a bucket can give in a second: what it gains, and a quarter of what it has beyond half its depth, or
// less what it has below. So it comes to rest half full, where a tag that is not cut finds tokens.
Tokens Affordable(const Shape& shape, const Bucket& bucket, Instant now) {
  const double gains = shape.rate();
  return std::max(gains / 2, gains + (bucket.Level(shape, now) - shape.burst() / 2) / 4);
}

}    // namespace

const AmongTags::Member* AmongTags::Find(const Group& group, std::uint64_t hash) {
  const auto* const end = group.hashes.begin() + group.size;
  const auto* const at = std::find(group.hashes.begin(), end, hash);
  return at != end ? &group.members[static_cast<std::size_t>(at - group.hashes.begin())] : nullptr;
}

Tokens AmongTags::DebtAt(const Member& member, double level, Instant now) {
  return member.debt == 0 ? 0 : std::max(0.0, member.debt - level * Seconds(now - member.since));
}

bool AmongTags::Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const {
  const std::size_t place = groups_.Find(charge.divided);
  if (place == groups_.kNone || IsOld(groups_[place], now)) return true;
  const Group& group = groups_[place];
  if (charge.among == Among::kRatio) return !Sheds(1 - group.now.ratio, prng);
  const Member* const member = Find(group, charge.member);
  if (member == nullptr) return true;
  // At once a tag gets no more than a part of what the bucket holds.
  return DebtAt(*member, group.now.level, now) < std::min(group.now.level, std::max(1.0, shape.burst() / 8));
}

AmongTags::Group* AmongTags::FindOrAdd(std::uint64_t divided, Instant now) {
  std::size_t place = groups_.Find(divided);
  if (place != groups_.kNone) return &groups_[place];
  place = groups_.RoomFor(divided, [&](std::size_t there) {
    const Group& group = groups_[there];
    return IsOld(group, now) ? std::optional(group.began) : std::nullopt;
  });
  if (place == groups_.kNone) return nullptr;
  groups_.Put(place, divided);
  groups_[place].began = Instant::min();
  return &groups_[place];
}

void AmongTags::Count(const Charge& charge, bool served, const Shape& shape, const Bucket& bucket, Instant now) {
  Group* const group = FindOrAdd(charge.divided, now);
  if (group == nullptr) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (group->began == Instant::min() || IsOld(*group, now)) {
    group->began = now;
    group->asked = 0;
    group->now = {};
    group->size = 0;
  } else if (now - group->began >= kCycle) {
    Divide(*group, charge.among, shape, bucket, now);
  }
  group->asked += charge.cost;
  if (charge.among != Among::kLevel) return;
  auto* member = const_cast<Member*>(Find(*group, charge.member));
  if (member == nullptr) {
    if (group->size == kMembersMax) {
      crowded_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    group->hashes[group->size] = charge.member;
    member = &group->members[group->size++];
    *member = {};
  }
  member->asked += charge.cost;
  if (served) member->debt = DebtAt(*member, group->now.level, now) + charge.cost, member->since = now;
}

// Begins another cycle. Members that were not listed keep their part of what there is, together.
void AmongTags::Divide(Group& group, Among among, const Shape& shape, const Bucket& bucket, Instant now) {
  const double seconds = Seconds(now - group.began);
  const Tokens enough = Affordable(shape, bucket, now), asked = group.asked / seconds;
  DividedAmong next;
  next.ratio = std::min(1.0, enough / asked);
  std::array<double, kMembersMax> requests;
  std::size_t kept = 0;
  Tokens listed = 0;
  for (std::size_t i = 0; i < group.size; ++i) {
    Member& member = group.members[i];
    listed += requests[i] = member.asked / seconds;
    member = {DebtAt(member, group.now.level, now), now, member.asked};
  }
  if (among == Among::kLevel) next.level = LevelOf(std::span(requests).first(group.size), enough * (listed / asked));
  for (std::size_t i = 0; i < group.size; ++i) {
    if (group.members[i].asked == 0 && group.members[i].debt == 0) continue;
    group.hashes[kept] = group.hashes[i];
    group.members[kept++] = {group.members[i].debt, now, 0};
  }
  group.size = kept;
  group.now = next;
  group.asked = 0;
  group.began = now;
}

DividedAmong AmongTags::Of(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place == groups_.kNone || IsOld(groups_[place], now) ? DividedAmong() : groups_[place].now;
}

}    // namespace dthrottle
