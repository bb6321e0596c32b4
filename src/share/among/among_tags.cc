#include "share/among/among_tags.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "base/siphash.h"
#include "capacity/divide.h"
#include "shed/curve.h"

namespace dthrottle {

namespace {

// What a tag may have of its level at once. With less it would lose what it did not ask for just now, and a tag that
// always asks would have that; with twice as much, tags that come late find the bucket empty.
constexpr double kAtOnce = 2;    // s
constexpr Tokens kFew = 3;     // of a part that an owner says, at least
// How far a host goes by what it serves now, and not by what it served as of the owner's word. With more than half, all
// hosts together swing about the level; with nothing, a host cannot follow a tag that has few queries.
constexpr double kNow = 0.3;
constexpr Duration kMemoryMin = std::chrono::seconds(2);    // over which rates of several hosts are measured
constexpr double kGrantedMin = 0.01;    // of what is asked for; less is not believed
constexpr double kThousandths = 1000;
constexpr SipKey kMemberKey{0x616d6f6e672e7461, 0x67732e0000000001};    // known to all hosts

// The tokens that a bucket can give in a second: what it gains, and some of what it has beyond half its depth, or less
// what it has below: a quarter, and of one that hosts share as much less as they hear late of each other. So it comes to
// rest half full, where a tag that is not cut finds tokens.
Tokens Affordable(const Shape& shape, Tokens level, Duration memory) {
  const double gains = shape.rate();
  return std::max(gains / 2, gains + (level - shape.burst() / 2) / (4 + 2 * Seconds(memory)));
}

}    // namespace

std::uint64_t AmongTags::NameOf(const Tag& member) {
  return SipHash<1, 3>(kMemberKey, member.bytes) & MemberWord::kNameMax;
}

Tokens AmongTags::DebtAt(const AmongMember& member, Instant now) {
  return member.debt == 0 ? 0 : std::max(0.0, member.debt - member.most * Seconds(now - member.since));
}

const AmongTags::Group* AmongTags::Find(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone && !IsOld(groups_[place], now) ? &groups_[place] : nullptr;
}

AmongTags::Group* AmongTags::FindShared(std::uint64_t divided, Instant now) {
  const std::size_t place = groups_.Find(divided);
  if (place == groups_.kNone || groups_[place].memory == Duration() || IsOld(groups_[place], now)) return nullptr;
  return &groups_[place];
}

bool AmongTags::Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const {
  const Group* const group = Find(charge.divided.hash, now);
  if (group == nullptr) return true;
  if (charge.divided.among == Among::kRatio) return !Sheds(1 - group->now.ratio, prng);
  const AmongMember* const member = members_.Find(group->hash, charge.member);
  if (member == nullptr || member->most == kUncut) return true;
  // However much that is, a tag gets no more than a part of what the bucket holds.
  return DebtAt(*member, now) < std::min(AtOnce(*group, *member, now), std::max(1.0, shape.burst() / 8));
}

AmongTags::Group* AmongTags::FindOrAdd(const Divided& divided, Instant now) {
  std::size_t place = groups_.Find(divided.hash);
  if (place != groups_.kNone) return &groups_[place];
  place = groups_.RoomFor(divided.hash, [&](std::size_t there) {
    const Group& group = groups_[there];
    return IsOld(group, now) ? std::optional(group.began) : std::nullopt;
  });
  if (place == groups_.kNone) return nullptr;
  Group& group = groups_[place];
  if (groups_.HashAt(place) != 0) members_.Clear(group.list, group.hash);
  groups_.Put(place, divided.hash);
  group.tag = KeptTag(divided.tag);
  group.hash = divided.hash;
  group.began = Instant::min();
  return &group;
}

AmongMember* AmongTags::FindOrAdd(Group& group, std::uint64_t name, double weight, Instant now) {
  AmongMember* member = members_.Find(group.hash, name);
  if (member == nullptr) {
    const auto is_old = [&](std::uint64_t divided) { return Find(divided, now) == nullptr; };
    const auto added = members_.Add(group.list, group.hash, name, is_old);
    member = added.member;
    if (member == nullptr || added.replaces) crowded_.fetch_add(1, std::memory_order_relaxed);
    if (member == nullptr) return nullptr;
    member->told_at = group.began;
    if (group.memory == Duration()) member->most = weight * group.now.level;
  }
  member->weight = weight;
  return member;
}

bool AmongTags::IsDue(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone && now - groups_[place].began >= CycleOf(groups_[place]);
}

// The group of the tag, in a cycle that is not over. Null: there is no room.
AmongTags::Group* AmongTags::Begin(const Divided& divided, const Shape& shape, Tokens level, Instant now) {
  Group* const group = FindOrAdd(divided, now);
  if (group == nullptr) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  group->hosts = divided.hosts;
  group->memory = divided.period == Duration() ? Duration() : std::max(kMemoryMin, 2 * divided.period);
  if (group->began == Instant::min() || IsOld(*group, now)) {
    group->began = now;
    group->asked = 0;
    group->now = {};
    group->owned = false;
    group->said_at = Instant::min();
    members_.Clear(group->list, group->hash);
  } else if (now - group->began >= CycleOf(*group)) {
    Divide(*group, divided.among, Affordable(shape, level, group->memory), now);
  }
  return group;
}

void AmongTags::Count(const Charge& charge, bool served, const Shape& shape, Tokens level, Instant now) {
  Group* const group = Begin(charge.divided, shape, level, now);
  if (group == nullptr) return;
  group->asked += charge.cost;
  if (charge.divided.among != Among::kLevel) return;
  AmongMember* const member = FindOrAdd(*group, charge.member, charge.weight, now);
  if (member == nullptr) return;
  const auto cost = static_cast<double>(charge.cost);
  for (MemberUse* const use : {&member->counted, &member->untold, &member->to_sites}) {
    use->asked += cost, use->served += served ? cost : 0;
  }
  if (!served) return;
  member->debt = DebtAt(*member, now) + charge.cost, member->since = now;
  member->dearest = std::max(member->dearest, charge.cost);
}

void AmongTags::Hear(std::uint64_t divided, std::uint64_t member, double weight, std::uint64_t hits, Instant now) {
  Group* const group = FindShared(divided, now);
  AmongMember* const its = group != nullptr ? FindOrAdd(*group, member, weight, now) : nullptr;
  if (its != nullptr) its->heard.served += static_cast<double>(hits);
}

// ---- Where a host owns the divided tag ----

MemberWord AmongTags::WordAbout(std::uint64_t member, const MemberUse& use, double times, double fair) {
  const auto number = [](double value) {
    return static_cast<std::uint64_t>(std::min(value, static_cast<double>(MemberWord::kMost)));
  };
  return {member, number(times * use.asked), number(times * use.served), number(std::max(kThousandths * fair, 1.0))};
}

// What a peer has served counts for no more than the limit lets one host serve, because a peer may lie; what a site
// has, for as many hosts. What it was asked for counts for no more than a hundred times that.
void AmongTags::HearPeer(const Divided& divided, const MemberWord& word, const Speaker& speaker, const Shape& shape,
                         Tokens level, Instant now) {
  Group* const group = Begin(divided, shape, level, now);
  AmongMember* const its =
      group != nullptr ? FindOrAdd(*group, word.member, static_cast<double>(word.fair) / kThousandths, now) : nullptr;
  if (its == nullptr) return;
  group->owned = true;
  const double served_max = shape.burst() + shape.rate() * Seconds(divided.period + kCycle);
  const double served = std::min(static_cast<double>(word.served), static_cast<double>(speaker.hosts) * served_max);
  const double asked = std::min(static_cast<double>(word.asked), (served + 1) / kGrantedMin);
  its->heard.served += served, its->heard.asked += asked;
  if (!speaker.abroad) its->to_sites.served += served, its->to_sites.asked += asked;
}

std::optional<Tag> AmongTags::TagOf(std::uint64_t divided) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone ? std::optional(groups_[place].tag.tag()) : std::nullopt;
}

std::optional<MemberWord> AmongTags::WordOf(std::uint64_t divided, std::uint64_t member, Instant now) const {
  const Group* const group = Find(divided, now);
  const AmongMember* const its = members_.Find(divided, member);
  if (group == nullptr || its == nullptr || !group->owned) return std::nullopt;
  return WordAbout(member, {its->request, its->here.served + its->there.served}, kThousandths, group->now.level);
}

void AmongTags::HearOwner(std::uint64_t divided, const MemberWord& word, Instant now) {
  Group* const group = FindShared(divided, now);
  if (group == nullptr) return;
  group->said_at = now;
  group->now.level = word.fair == MemberWord::kMost ? kUncut : static_cast<double>(word.fair) / kThousandths;
  AmongMember* const its = members_.Find(divided, word.member);
  if (its == nullptr) return;
  its->request = std::max(static_cast<double>(word.asked) / kThousandths, its->here.asked);
  its->all = static_cast<double>(word.served) / kThousandths, its->of_all = its->told_before;
  Allow(*group, *its, group->now.level, now);
}

// The owner answers by what it had been told before, and adds up meanwhile what is told now. A host that compared itself
// as it is with all hosts as they were would take more, the more it has taken.
void AmongTags::Told(const Group& group, AmongMember& member, Instant now) {
  const Duration passed = now - std::exchange(member.told_at, now);
  const double kept = KeptOf(group, passed);
  member.told_before = member.told;
  if (passed > Duration()) member.told = kept * member.told + (1 - kept) * member.untold.served / Seconds(passed);
  member.untold = {};
}

// ---- Levels ----

// How much of a rate is left when it is measured anew after that time.
double AmongTags::KeptOf(const Group& group, Duration passed) {
  return group.memory == Duration() ? 0 : std::exp(-Seconds(passed) / Seconds(group.memory));
}

// Begins another cycle.
void AmongTags::Divide(Group& group, Among among, Tokens enough, Instant now) {
  const double seconds = Seconds(now - group.began);
  const double kept = KeptOf(group, now - group.began);
  DividedAmong next;
  next.ratio = std::min(1.0, enough / (group.asked / seconds));
  if (among == Among::kLevel) next.level = LevelNow(group, enough, seconds, kept, now);
  members_.Retain(group.list, [&](AmongMember& member) {
    if (member.idle()) return false;
    member.counted = member.heard = {};
    Allow(group, member, next.level, now);
    return true;
  });
  group.now = next;
  group.asked = 0;
  group.began = now;
}

// Brings members up to date, and returns the level of a weight of 1.
double AmongTags::LevelNow(Group& group, Tokens enough, double seconds, double kept, Instant now) {
  Measure(group, seconds, kept, now);
  if (!IsSaid(group, now)) return LevelOfAll(group, enough, seconds);
  members_.ForEach(group.list, [](AmongMember& its) { its.request = std::max(its.request, its.here.asked); });
  return group.now.level;
}

void AmongTags::Measure(Group& group, double seconds, double kept, Instant now) {
  const bool said = IsSaid(group, now);
  const auto lately = [&](MemberUse& use, const MemberUse& counted) {
    use.asked = kept * use.asked + (1 - kept) * counted.asked / seconds;
    use.served = kept * use.served + (1 - kept) * counted.served / seconds;
  };
  members_.ForEach(group.list, [&](AmongMember& member) {
    lately(member.here, member.counted);
    if (!said) lately(member.there, member.heard);
  });
}

// Members that were not listed count together, as so many as if each asked for what the listed ones do on average.
//
// Peers say what they have served, and what counts is what is asked of them: that is more by as much as is refused here,
// of a tag that is cut, or of all others together, which the bucket refuses alike and of which one has few queries. To
// an owner they say what is asked of them.
double AmongTags::LevelOfAll(Group& group, Tokens enough, double seconds) {
  MemberUse uncut;
  members_.ForEach(group.list, [&](const AmongMember& member) {
    if (member.most == kUncut) uncut.asked += member.here.asked, uncut.served += member.here.served;
  });
  const auto granted = [](const MemberUse& use) {
    return use.asked > 0 ? std::clamp(use.served / use.asked, kGrantedMin, 1.0) : 1;
  };
  const double uncut_granted = granted(uncut);
  std::array<WeightedRequest, AmongMembers::kMostOfOne + 1> requests;
  std::size_t size = 0;
  double listed = 0, weights = 0, unlisted = group.asked / seconds;    // tokens/s
  members_.ForEach(group.list, [&](AmongMember& member) {
    const double its = member.most == kUncut ? uncut_granted : granted(member.here);
    member.request = member.here.asked + (group.owned ? member.there.asked : member.there.served / its);
    requests[size++] = {member.request, member.weight};
    listed += member.request, weights += member.weight;
    unlisted -= member.counted.asked / seconds;
  });
  if (listed <= 0) return kUncut;
  if (unlisted > 0) requests[size++] = {unlisted, unlisted * weights / listed};
  return LevelOf(std::span(requests).first(size), enough);
}

// A tag that asks all hosts together for no more than its level is served as it comes. A host that has served nothing of
// one lately may serve a little of it, so that the tag can move there.
double AmongTags::MostHere(const Group& group, const AmongMember& member, double level, Instant now) {
  const double most = member.weight * level;
  if (group.memory == Duration()) return most;
  if (member.request <= most) return kUncut;
  const bool said = IsSaid(group, now);
  const double here = said ? std::lerp(member.of_all, member.here.served, kNow) : member.here.served;
  const double all = said ? std::max(member.all, here) : here + member.there.served;
  const double part = here / std::max(all, 1e-9);
  return most * std::max(part, 0.25 / static_cast<double>(group.hosts));
}

// What the member may have of its level at once. Where hosts have less than a query a second of it each, a host may
// serve some queries that come together.
Tokens AmongTags::AtOnce(const Group& group, const AmongMember& member, Instant now) {
  const Tokens here = kAtOnce * member.most;
  return IsSaid(group, now) ? std::max(here, std::min(kFew, kAtOnce * member.weight * group.now.level)) : here;
}

// The member's part is another one now. What it had at once of a much larger one does not count for long.
void AmongTags::Allow(const Group& group, AmongMember& member, double level, Instant now) {
  member.debt = DebtAt(member, now), member.since = now;
  member.most = MostHere(group, member, level, now);
  if (member.most == kUncut) return;
  member.debt = std::min(member.debt, AtOnce(group, member, now) + kAtOnce * member.most + member.dearest);
}

DividedAmong AmongTags::Of(std::uint64_t divided, Instant now) const {
  const Group* const group = Find(divided, now);
  return group != nullptr ? group->now : DividedAmong();
}

}    // namespace dthrottle
