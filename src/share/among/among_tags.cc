#include "share/among/among_tags.h"

#include <algorithm>

#include "base/siphash.h"
#include "shed/curve.h"

namespace dthrottle {

namespace {

constexpr Duration kMemoryMin = std::chrono::seconds(2);    // over which rates of several hosts are measured
constexpr double kThousandths = 1000;
constexpr SipKey kMemberKey{0x616d6f6e672e7461, 0x67732e0000000001};    // known to all hosts

void Learn(UsedParts& used, const AmongTags::Settled& settled) {
  UsedPart& part = settled.held ? used.holds : used.takes;
  if (settled.held) part.Add(settled.paid);
  part.ComesBack(static_cast<Tokens>(settled.paid) - static_cast<Tokens>(settled.actual));
}

// What a question that is refused would have used. A member of which nothing is known counts as all members together.
double WouldUse(const AmongTags::Charge& charge, const AmongGroup& group, const AmongMember* member) {
  std::optional<double> part = member != nullptr ? member->used.of(charge.holds).part() : std::nullopt;
  if (!part.has_value()) part = group.used.of(charge.holds).part();
  return charge.cost * part.value_or(1);
}

}    // namespace

std::uint64_t AmongTags::NameOf(const Tag& member) {
  return SipHash<1, 3>(kMemberKey, member.bytes) & MemberWord::kNameMax;
}

const AmongGroup* AmongTags::Find(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone && !groups_[place].IsOld(now) ? &groups_[place] : nullptr;
}

AmongGroup* AmongTags::FindShared(std::uint64_t divided, Instant now) {
  const std::size_t place = groups_.Find(divided);
  if (place == groups_.kNone || groups_[place].memory == Duration() || groups_[place].IsOld(now)) return nullptr;
  return &groups_[place];
}

bool AmongTags::Would(const Charge& charge, const Shape& shape, Prng& prng, Instant now) const {
  const AmongGroup* const group = Find(charge.divided.hash, now);
  if (group == nullptr) return true;
  if (charge.divided.among == Among::kRatio) return !Sheds(1 - group->current.ratio, prng);
  const AmongMember* const member = members_.Find(group->hash, charge.member);
  if (member == nullptr || member->most == kUncut) return true;
  // However much that is, a tag gets no more than a part of what the bucket holds.
  return member->DebtAt(now) < std::min(group->AtOnce(*member, now), std::max(1.0, shape.burst() / 8));
}

AmongGroup* AmongTags::FindOrAdd(const Divided& divided, Instant now) {
  std::size_t place = groups_.Find(divided.hash);
  if (place != groups_.kNone) return &groups_[place];
  place = groups_.RoomFor(divided.hash, [&](std::size_t there) {
    const AmongGroup& group = groups_[there];
    return group.IsOld(now) ? std::optional(group.began) : std::nullopt;
  });
  if (place == groups_.kNone) return nullptr;
  AmongGroup& group = groups_[place];
  if (groups_.HashAt(place) != 0) members_.Clear(group.list, group.hash);
  groups_.Put(place, divided.hash);
  group.tag = KeptTag(divided.tag);
  group.hash = divided.hash;
  group.used = {};
  group.began = Instant::min();
  return &group;
}

AmongMember* AmongTags::FindOrAdd(AmongGroup& group, std::uint64_t name, double weight, Instant now) {
  AmongMember* member = members_.Find(group.hash, name);
  if (member == nullptr) {
    const auto is_old = [&](std::uint64_t divided) { return Find(divided, now) == nullptr; };
    const auto added = members_.Add(group.list, group.hash, name, is_old);
    member = added.member;
    if (member == nullptr || added.replaces) crowded_.fetch_add(1, std::memory_order_relaxed);
    if (member == nullptr) return nullptr;
    member->told_at = group.began;
    if (group.memory == Duration()) member->most = weight * group.current.level;
    member->weight = weight;
  }
  member->weight = std::max(member->weight, weight);
  member->weight_said = std::max(member->weight_said, weight);
  return member;
}

bool AmongTags::IsDue(std::uint64_t divided, Instant now) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone && groups_[place].IsDue(now);
}

// The group of the tag, in a cycle that is not over. Null: there is no room.
AmongGroup* AmongTags::Begin(const Divided& divided, const Shape& shape, Tokens level, Instant now) {
  AmongGroup* const group = FindOrAdd(divided, now);
  if (group == nullptr) {
    crowded_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  group->hosts = divided.hosts;
  group->its_shape = shape;
  group->memory = divided.period == Duration() ? Duration() : std::max(kMemoryMin, 2 * divided.period);
  if (group->began == Instant::min() || group->IsOld(now)) {
    group->Begin(members_, now);
  } else if (group->IsDue(now)) {
    group->Divide(members_, divided.among, shape, level, now);
  }
  return group;
}

void AmongTags::Count(const Charge& charge, bool served, const Shape& shape, Tokens level, Instant now) {
  AmongGroup* const group = Begin(charge.divided, shape, level, now);
  if (group == nullptr) return;
  AmongMember* const member =
      charge.divided.among == Among::kLevel ? FindOrAdd(*group, charge.member, charge.weight, now) : nullptr;
  const auto cost = static_cast<double>(charge.cost);
  const double asked = served ? cost : WouldUse(charge, *group, member);
  group->asked += asked;
  if (served && !charge.holds) group->used.takes.Add(cost);
  if (member == nullptr) return;
  for (MemberUse* const use : {&member->counted, &member->untold, &member->to_sites}) {
    use->asked += asked, use->served += served ? cost : 0;
  }
  if (!served) return;
  if (!charge.holds) member->used.takes.Add(cost);
  member->debt = member->DebtAt(now) + charge.cost, member->since = now;
  member->dearest = std::max(member->dearest, charge.cost);
}

// What was counted in a cycle that is over stays as it was.
void AmongTags::Settle(std::uint64_t divided, std::uint64_t member, const Settled& settled, Instant now) {
  const Tokens more = static_cast<Tokens>(settled.actual) - static_cast<Tokens>(settled.paid);
  const auto add = [&](double& amount) { amount = std::max(0.0, amount + more); };
  const std::size_t place = groups_.Find(divided);
  if (place == groups_.kNone || groups_[place].IsOld(now)) return;
  add(groups_[place].asked);
  Learn(groups_[place].used, settled);
  AmongMember* const its = members_.Find(divided, member);
  if (its == nullptr) return;
  for (MemberUse* const use : {&its->counted, &its->untold, &its->to_sites}) add(use->asked), add(use->served);
  Learn(its->used, settled);
  its->debt = std::max(0.0, its->DebtAt(now) + more), its->since = now;
}

AmongPeerParts::Bounds AmongTags::BoundsOf(const AmongGroup& group, const Speaker& speaker) {
  const auto hosts = static_cast<double>(speaker.hosts);
  const double part = std::min(1.0, hosts / static_cast<double>(group.hosts));
  const double rate = group.its_shape.rate();
  const Tokens served_max = group.its_shape.burst() + rate * Seconds(group.memory + kCycle);
  return {rate * part, hosts * served_max, group.memory};
}

// What counts of it. What it served and does not count is counted; an honest host is asked for more than it serves.
MemberUse AmongTags::Believed(const AmongGroup& group, const Speaker& speaker, MemberUse said, Instant now) {
  const MemberUse use = peers_.Believed(group.hash, speaker.from_whom(), said, BoundsOf(group, speaker), now);
  disbelieved_.fetch_add(static_cast<std::uint64_t>(said.served - use.served), std::memory_order_relaxed);
  return use;
}

void AmongTags::HearHits(std::uint64_t divided, std::uint64_t hits, const Speaker& speaker, Instant now) {
  AmongGroup* const group = FindShared(divided, now);
  if (group == nullptr) return;
  peers_.AddHits(divided, speaker.from_whom(), static_cast<double>(hits), BoundsOf(*group, speaker), now);
}

void AmongTags::Hear(std::uint64_t divided, std::uint64_t member, double weight, std::uint64_t hits,
                     const Speaker& speaker, Instant now) {
  AmongGroup* const group = FindShared(divided, now);
  if (group == nullptr) return;
  const auto said = static_cast<double>(hits);
  const double served = Believed(*group, speaker, {said, said}, now).served;
  AmongMember* const its = served > 0 ? FindOrAdd(*group, member, weight, now) : nullptr;
  if (its != nullptr) its->heard.served += served;
}

// ---- Where a host owns the divided tag ----

MemberWord AmongTags::WordAbout(std::uint64_t member, const MemberUse& use, double times, double fair) {
  const auto number = [](double value) {
    return static_cast<std::uint64_t>(std::min(value, static_cast<double>(MemberWord::kMost)));
  };
  return {member, number(times * use.asked), number(times * use.served), number(std::max(kThousandths * fair, 1.0))};
}

void AmongTags::HearPeer(const Divided& divided, const MemberWord& word, const Speaker& speaker, const Shape& shape,
                         Tokens level, Instant now) {
  AmongGroup* const group = Begin(divided, shape, level, now);
  if (group == nullptr) return;
  group->owned = true;
  const MemberUse said{static_cast<double>(word.asked), static_cast<double>(word.served)};
  const MemberUse use = Believed(*group, speaker, said, now);
  if (use.asked <= 0) return;
  const double weight = std::min(static_cast<double>(word.fair) / kThousandths, divided.weight_max);
  AmongMember* const its = FindOrAdd(*group, word.member, weight, now);
  if (its == nullptr) return;
  its->heard.served += use.served, its->heard.asked += use.asked;
  if (!speaker.abroad) its->to_sites.served += use.served, its->to_sites.asked += use.asked;
}

std::optional<Tag> AmongTags::TagOf(std::uint64_t divided) const {
  const std::size_t place = groups_.Find(divided);
  return place != groups_.kNone ? std::optional(groups_[place].tag.tag()) : std::nullopt;
}

std::optional<MemberWord> AmongTags::WordOf(std::uint64_t divided, std::uint64_t member, Instant now) const {
  const AmongGroup* const group = Find(divided, now);
  const AmongMember* const its = members_.Find(divided, member);
  if (group == nullptr || its == nullptr || !group->owned) return std::nullopt;
  return WordAbout(member, {its->request, its->here.served + its->there.served}, kThousandths, group->current.level);
}

void AmongTags::HearOwner(std::uint64_t divided, const MemberWord& word, Instant now) {
  AmongGroup* const group = FindShared(divided, now);
  if (group == nullptr) return;
  group->said_at = now;
  group->current.level = word.fair == MemberWord::kMost ? kUncut : static_cast<double>(word.fair) / kThousandths;
  AmongMember* const its = members_.Find(divided, word.member);
  if (its == nullptr) return;
  its->request = std::max(static_cast<double>(word.asked) / kThousandths, its->here.asked);
  its->all = static_cast<double>(word.served) / kThousandths, its->of_all = its->told_before;
  group->Allow(*its, group->current.level, now);
}

// ---- For people ----

DividedAmong AmongTags::Of(std::uint64_t divided, Instant now) const {
  const AmongGroup* const group = Find(divided, now);
  return group != nullptr ? group->current : DividedAmong();
}

}    // namespace dthrottle
