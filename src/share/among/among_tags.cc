#include "share/among/among_tags.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "capacity/divide.h"
#include "shed/curve.h"

namespace dthrottle {

namespace {

// What a tag may have of its level at once. With less it would lose what it did not ask for just now, and a tag that
// always asks would have that; with twice as much, tags that come late find the bucket empty.
constexpr double kAtOnce = 2;    // s
constexpr Duration kMemoryMin = std::chrono::seconds(2);    // over which rates of several hosts are measured

// The tokens that a bucket can give in a second: what it gains, and some of what it has beyond half its depth, or less
// what it has below: a quarter, and of one that hosts share as much less as they hear late of each other. So it comes to
// rest half full, where a tag that is not cut finds tokens.
Tokens Affordable(const Shape& shape, Tokens level, Duration memory) {
  const double gains = shape.rate();
  return std::max(gains / 2, gains + (level - shape.burst() / 2) / (4 + 2 * Seconds(memory)));
}

}    // namespace

const AmongTags::Member* AmongTags::Find(const Group& group, std::uint64_t hash) {
  const auto* const end = group.hashes.begin() + group.size;
  const auto* const at = std::find(group.hashes.begin(), end, hash);
  return at != end ? &group.members[static_cast<std::size_t>(at - group.hashes.begin())] : nullptr;
}

Tokens AmongTags::DebtAt(const Member& member, Instant now) {
  return member.debt == 0 ? 0 : std::max(0.0, member.debt - member.most * Seconds(now - member.since));
}

bool AmongTags::Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const {
  const std::size_t place = groups_.Find(charge.divided);
  if (place == groups_.kNone || IsOld(groups_[place], now)) return true;
  const Group& group = groups_[place];
  if (charge.among == Among::kRatio) return !Sheds(1 - group.now.ratio, prng);
  const Member* const member = Find(group, charge.member);
  if (member == nullptr || member->most == kUncut) return true;
  // However much that is, a tag gets no more than a part of what the bucket holds.
  return DebtAt(*member, now) < std::min(kAtOnce * member->most, std::max(1.0, shape.burst() / 8));
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

AmongTags::Member* AmongTags::FindOrAdd(Group& group, std::uint64_t hash, double weight) {
  if (const Member* const known = Find(group, hash)) {
    Member* const member = const_cast<Member*>(known);
    member->weight = weight;
    return member;
  }
  if (group.size == kMembersMax) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  group.hashes[group.size] = hash;
  Member& member = group.members[group.size++] = Member();
  member.weight = weight;
  if (group.memory == Duration()) member.most = weight * group.now.level;
  return &member;
}

bool AmongTags::IsDue(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone && now - groups_[place].began >= kCycle;
}

void AmongTags::Count(const Charge& charge, bool served, const Shape& shape, Tokens level, Instant now) {
  Group* const group = FindOrAdd(charge.divided, now);
  if (group == nullptr) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  group->hosts = charge.hosts;
  group->memory = charge.period == Duration() ? Duration() : std::max(kMemoryMin, 2 * charge.period);
  if (group->began == Instant::min() || IsOld(*group, now)) {
    group->began = now;
    group->asked = 0;
    group->now = {};
    group->size = 0;
  } else if (now - group->began >= kCycle) {
    Divide(*group, charge.among, Affordable(shape, level, group->memory), now);
  }
  group->asked += charge.cost;
  if (charge.among != Among::kLevel) return;
  Member* const member = FindOrAdd(*group, charge.member, charge.weight);
  if (member == nullptr) return;
  member->asked += charge.cost;
  if (!served) return;
  member->served += charge.cost;
  member->debt = DebtAt(*member, now) + charge.cost, member->since = now;
}

void AmongTags::Hear(std::uint64_t divided, std::uint64_t member, double weight, std::uint64_t hits, Instant now) {
  const std::size_t place = groups_.Find(divided);
  if (place == groups_.kNone || groups_[place].memory == Duration() || IsOld(groups_[place], now)) return;
  Group& group = groups_[place];
  Member* const its = FindOrAdd(group, member, weight);
  if (its != nullptr) its->heard += static_cast<double>(hits);
}

// Begins another cycle.
void AmongTags::Divide(Group& group, Among among, Tokens enough, Instant now) {
  const double seconds = Seconds(now - group.began);
  const double kept = group.memory == Duration() ? 0 : std::exp(-seconds / Seconds(group.memory));
  DividedAmong next;
  next.ratio = std::min(1.0, enough / (group.asked / seconds));
  if (among == Among::kLevel) next.level = LevelNow(group, enough, seconds, kept, now);
  std::size_t size = 0;
  for (std::size_t i = 0; i < group.size; ++i) {
    if (group.members[i].idle()) continue;
    group.hashes[size] = group.hashes[i];
    Member& member = group.members[size++] = group.members[i];
    member.asked = member.served = member.heard = 0;
    member.most = MostHere(group, member, next.level);
  }
  group.size = size;
  group.now = next;
  group.asked = 0;
  group.began = now;
}

// Brings members up to date, and returns the level of a weight of 1. Members that were not listed keep their part of
// what there is, together.
//
// Peers say what they have served, and what counts is what is asked of them: that is more by as much as is refused here,
// of a tag that is cut, or of all others together, which the bucket refuses alike and of which one has few queries.
double AmongTags::LevelNow(Group& group, Tokens enough, double seconds, double kept, Instant now) {
  Tokens uncut_wanted = 0, uncut_here = 0;
  for (Member& member : std::span(group.members).first(group.size)) {
    const auto lately = [&](double before, Tokens counted) { return kept * before + (1 - kept) * counted / seconds; };
    member.debt = DebtAt(member, now), member.since = now;
    member.wanted = lately(member.wanted, member.asked), member.here = lately(member.here, member.served);
    member.there = lately(member.there, member.heard);
    if (member.most == kUncut) uncut_wanted += member.wanted, uncut_here += member.here;
  }
  const auto granted = [](double here, double wanted) { return wanted > 0 ? std::clamp(here / wanted, 0.01, 1.0) : 1; };
  const double uncut_granted = granted(uncut_here, uncut_wanted);
  std::array<WeightedRequest, kMembersMax> requests;
  Tokens all = group.asked / seconds, listed = 0;    // tokens/s
  for (std::size_t i = 0; i < group.size; ++i) {
    Member& member = group.members[i];
    const double its = member.most == kUncut ? uncut_granted : granted(member.here, member.wanted);
    member.request = member.wanted + member.there / its;
    requests[i] = {member.request, member.weight};
    listed += requests[i].request;
    all += requests[i].request - member.asked / seconds;
  }
  if (listed <= 0) return kUncut;
  return LevelOf(std::span(requests).first(group.size), enough * (listed / std::max(all, listed)));
}

// A tag that asks all hosts together for no more than its level is served as it comes. A host that has served nothing of
// one lately may serve a little of it, so that the tag can move there.
double AmongTags::MostHere(const Group& group, const Member& member, double level) {
  const double most = member.weight * level;
  if (group.memory == Duration()) return most;
  if (member.request <= most) return kUncut;
  const double part = member.here / std::max(member.here + member.there, 1e-9);
  return most * std::max(part, 0.25 / static_cast<double>(group.hosts));
}

DividedAmong AmongTags::Of(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place == groups_.kNone || IsOld(groups_[place], now) ? DividedAmong() : groups_[place].now;
}

}    // namespace dthrottle
