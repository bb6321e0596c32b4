#include "share/among/group.h"

#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "capacity/divide.h"

namespace dthrottle {

namespace {

// What a tag may have of its level at once. With less it would lose what it did not ask for just now, and a tag that
// always asks would have that; with twice as much, tags that come late find the bucket empty.
constexpr double kAtOnce = 2;    // s
constexpr Tokens kFew = 3;       // of a part that an owner says, at least
// How far a host goes by what it serves now, and not by what it served as of the owner's word. With more than half, all
// hosts together swing about the level; with nothing, a host cannot follow a tag that has few queries.
constexpr double kNow = 0.3;
// The part of what a host lacks of an equal part that it may serve more, where no owner says the level.
constexpr double kTowardsEqual = 0.1;

// The tokens that a bucket can give in a second: what it gains, and some of what it has beyond half its depth, or less
// what it has below: a quarter, and of one that hosts share as much less as they hear late of each other. So it comes to
// rest half full, where a tag that is not cut finds tokens.
Tokens Affordable(const Shape& shape, Tokens level, Duration memory) {
  const double gains = shape.rate();
  return std::max(gains / 2, gains + (level - shape.burst() / 2) / (4 + 2 * Seconds(memory)));
}

}    // namespace

// ---- Cycles ----

void AmongGroup::Begin(AmongMembers& members, Instant now) {
  began = now;
  asked = 0;
  current = {};
  owned = false;
  said_at = Instant::min();
  members.Clear(list, hash);
}

void AmongGroup::Divide(AmongMembers& members, Among among, const Shape& shape, Tokens level, Instant now) {
  const double seconds = Seconds(now - began);
  const double kept = KeptOver(now - began);
  const Tokens enough = Affordable(shape, level, memory);
  DividedAmong next;
  next.ratio = std::min(1.0, enough / (asked / seconds));
  if (among == Among::kLevel) next.level = LevelNow(members, enough, seconds, kept, now);
  members.Retain(list, [&](AmongMember& member) {
    if (member.idle()) return false;
    member.counted = member.heard = {};
    if (member.weight_said > 0) member.weight = std::exchange(member.weight_said, 0);
    Allow(member, next.level, now);
    return true;
  });
  current = next;
  asked = 0;
  began = now;
}

// How much of a rate is left when it is measured anew after that time.
double AmongGroup::KeptOver(Duration passed) const {
  return memory == Duration() ? 0 : std::exp(-Seconds(passed) / Seconds(memory));
}

// The owner answers by what it had been told before, and adds up meanwhile what is told now. A host that compared itself
// as it is with all hosts as they were would take more, the more it has taken.
void AmongGroup::Told(AmongMember& member, Instant now) const {
  const Duration passed = now - std::exchange(member.told_at, now);
  const double kept = KeptOver(passed);
  member.told_before = member.told;
  if (passed > Duration()) member.told = kept * member.told + (1 - kept) * member.untold.served / Seconds(passed);
  member.untold = {};
}

// ---- Levels ----

// Brings members up to date, and returns the level of a weight of 1.
double AmongGroup::LevelNow(AmongMembers& members, Tokens enough, double seconds, double kept, Instant now) {
  Measure(members, seconds, kept, now);
  if (!IsSaid(now)) return LevelOfAll(members, enough, seconds);
  members.ForEach(list, [](AmongMember& its) { its.request = std::max(its.request, its.here.asked); });
  return current.level;
}

void AmongGroup::Measure(AmongMembers& members, double seconds, double kept, Instant now) {
  const bool said = IsSaid(now);
  const auto lately = [&](MemberUse& use, const MemberUse& counted) {
    use.asked = kept * use.asked + (1 - kept) * counted.asked / seconds;
    use.served = kept * use.served + (1 - kept) * counted.served / seconds;
  };
  members.ForEach(list, [&](AmongMember& member) {
    lately(member.here, member.counted);
    if (!said) lately(member.there, member.heard);
  });
}

// Members that were not listed count together, as so many as if each asked for what the listed ones do on average.
//
// Peers say what they have served, and what counts is what is asked of them: that is more by as much as is refused here,
// of a tag that is cut, or of all others together, which the bucket refuses alike and of which one has few queries. To
// an owner they say what is asked of them.
double AmongGroup::LevelOfAll(AmongMembers& members, Tokens enough, double seconds) const {
  MemberUse uncut;
  members.ForEach(list, [&](const AmongMember& member) {
    if (member.most == kUncut) uncut.asked += member.here.asked, uncut.served += member.here.served;
  });
  const auto granted = [](const MemberUse& use) {
    return use.asked > 0 ? std::clamp(use.served / use.asked, kGrantedMin, 1.0) : 1;
  };
  const double uncut_granted = granted(uncut);
  std::array<WeightedRequest, AmongMembers::kMostOfOne + 1> requests;
  std::size_t size = 0;
  double listed = 0, weights = 0, unlisted = asked / seconds;    // tokens/s
  members.ForEach(list, [&](AmongMember& member) {
    const double its = member.most == kUncut ? uncut_granted : granted(member.here);
    member.request = member.here.asked + (owned ? member.there.asked : member.there.served / its);
    requests[size++] = {member.request, member.weight};
    listed += member.request, weights += member.weight;
    unlisted -= member.counted.asked / seconds;
  });
  if (listed <= 0) return kUncut;
  if (unlisted > 0) requests[size++] = {unlisted, unlisted * weights / listed};
  return LevelOf(std::span(requests).first(size), enough);
}

// ---- What a member may have ----

// A tag that asks all hosts together for no more than its level is served as it comes. A host that has served nothing of
// one lately may serve a little of it, so that the tag can move there. A host that has served less than an equal part
// may serve some of what it lacks. Without that, the host that finds the highest level, by a few per cent, takes the
// parts of the others within minutes, and then sees only what is asked of itself.
double AmongGroup::MostHere(const AmongMember& member, double level, Instant now) const {
  const double most = member.weight * level;
  if (memory == Duration()) return most;
  if (member.request <= most) return kUncut;
  const bool said = IsSaid(now);
  const double here = said ? std::lerp(member.of_all, member.here.served, kNow) : member.here.served;
  const double all = said ? std::max(member.all, here) : here + member.there.served;
  const double part = here / std::max(all, 1e-9), equal = 1 / static_cast<double>(hosts);
  const double more = said ? 0 : kTowardsEqual * std::max(equal - part, 0.0);
  return most * std::max(part + more, 0.25 * equal);
}

// Where hosts have less than a query a second of it each, a host may serve some queries that come together.
Tokens AmongGroup::AtOnce(const AmongMember& member, Instant now) const {
  const Tokens here = kAtOnce * member.most;
  return IsSaid(now) ? std::max(here, std::min(kFew, kAtOnce * member.weight * current.level)) : here;
}

// What the member had at once of a much larger part does not count for long.
void AmongGroup::Allow(AmongMember& member, double level, Instant now) const {
  member.debt = member.DebtAt(now), member.since = now;
  member.most = MostHere(member, level, now);
  if (member.most == kUncut) return;
  member.debt = std::min(member.debt, AtOnce(member, now) + kAtOnce * member.most + member.dearest);
}

}    // namespace dthrottle
