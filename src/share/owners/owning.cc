#include "share/owners/owning.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "share/debit/ownership.h"
#include "share/look.h"
#include "share/said_tag.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kUserMax = 10s;           // a host that has not named a tag for so long does not use it
constexpr Duration kTellEvery = 5ms;         // changes are gathered for so long
constexpr Duration kHostGap = 20ms;          // between two frames to one host
constexpr Duration kOnItsWay = 100ms;        // a level, to a host, unless it is late or lost
constexpr int kToldForPeriods = 3;           // a host that was told nothing for so long may have missed what it was told
constexpr Duration kNearGap = 50ms;          // between two frames to everybody
constexpr int kNearPeriods = 3;              // a tag that stays near its limit is told again
constexpr double kNearOfBurst = 0.5, kNearStep = 0.1;
constexpr double kPushesOfPeriod = 4;        // in the long run, of one tag
constexpr Duration kForgetEvery = 20ms;      // so many parts of the tags are looked through: all of them in 10 s
constexpr std::size_t kForgetParts = 2;

}    // namespace

// ---- What hosts say ----

void Owning::Named(const Entries& entries, std::size_t first, std::size_t n, std::uint32_t peer, Instant to,
                   Instant now) {
  for (std::size_t i = first; i < first + n; ++i) {
    const Entry& entry = entries.list()[i];
    const Tag tag = entries.tag(entry);
    const std::uint64_t hash = table_.Hash(TableTag(tag));
    if (entries.any_rare() && NamedBeside(entries, entry, hash, peer, now)) continue;
    Owned* const owned = OwnedOf(tag, hash, peer, now);
    if (owned == nullptr) continue;
    if (owned->changes == 0) owned->changes = UsedBefore(*owned, hash, entry.value, now);
    User& user = UserOf(*owned, peer);
    user.named = now;
    user.again = user.again || MayHaveMissed(user, to, now);
    ++user.own;
    // A host that names a tag without hits or demand refuses it, so it believes in a low level.
    user.lower = user.lower || (entry.value == 0 && entries.demand(entry) == 0);
    if (!owned->nearly_full || user.lower) Due(user, hash);
    Change(*owned, hash, now);
  }
}

// Whether the host that reports its hits until `to` may lack the level that it was told last. A host passes over a
// level while a report of the tag is on its way, because the answer to the report has a newer one. A level that comes
// too late, or is lost, would stay missing until somebody else changes the tag.
bool Owning::MayHaveMissed(const User& user, Instant to, Instant now) const {
  if (user.told == Instant::min()) return false;    // it was told nothing
  return to <= user.told + kOnItsWay || now - user.told >= kToldForPeriods * ToDuration(ways_.core().window);
}

// Whether the entry says something that is not about its bucket.
bool Owning::NamedBeside(const Entries& entries, const Entry& entry, std::uint64_t hash, std::uint32_t peer,
                         Instant now) {
  if (entries.quota(entry)) {
    QuotaCounted(hash, peer, now);
  } else if (entries.places(entry)) {
    if (Owned* const owned = OwnedOf(entries.tag(entry), hash, peer, now)) UserOf(*owned, peer).named = now;
    PlacesChanged(hash, peer);
  } else if (const auto word = entries.member(entry)) {
    members_.Named(hash, word->member, peer);
  } else {
    return false;
  }
  return true;
}

void Owning::QuotaCounted(std::uint64_t hash, std::uint32_t peer, Instant now) {
  quotas_.Counted(hash, peer, now);
  if (quotas_.waiting() > 0) TellAt(std::max(now, near_at_ + kNearGap));
}

void Owning::Counted(std::uint32_t peer, std::uint64_t counted, Instant now) {
  Host& host = HostOf(peer);
  host.counted = counted;
  host.answer = true;
  TellAt(std::max(now, host.told_at + kHostGap));
}

void Owning::NamedAbroad(const Entries& entries, Instant now) {
  for (const Entry& e : entries.list()) {
    const Tag tag = entries.tag(e);
    const std::uint64_t hash = table_.Hash(TableTag(tag));
    if (entries.quota(e)) {
      QuotaCounted(hash, kNobody, now);
      continue;
    }
    if (entries.places(e)) PlacesChanged(hash, kNobody);
    // Penalties say themselves that they have begun, and of members a host is told as it asks.
    if (entries.penalty(e) || entries.places(e) || entries.member(e) || entries.refusals(e) != 0) continue;
    NamedBesideUsers(tag, hash, now);
  }
}

void Owning::NamedHere(const Entries& entries, Instant now) {
  for (const Entry& e : entries.list()) {
    const Tag tag = entries.tag(e);
    NamedBesideUsers(tag, table_.Hash(TableTag(tag)), now);
  }
}

// This host or another site has changed the tag. A tag that no host uses is told only where its bucket is low, and then
// to everybody.
void Owning::NamedBesideUsers(const Tag& tag, std::uint64_t hash, Instant now) {
  Owned* owned = Find(hash);
  if (owned == nullptr && OwnsHere(ways_.core(), tag)) {
    bool low = false;
    LookAt(ways_, tag, hash, kNobody, now,
           [&](const Look& look) { low = look.level(now) < kNearOfBurst * look.pace.burst; });
    if (low) owned = Add(tag, hash, kNobody);
  }
  if (owned == nullptr) return;
  owned->beside_at = now;
  Change(*owned, hash, now);
}

// Null: the tag is not known, or another host owns it by now.
Owning::Owned* Owning::Find(std::uint64_t hash) {
  Owned* const known = tags_.Find(hash);
  if (known == nullptr || known->list == list_) return known;
  known->list = list_;
  if (owners_->Of(known->said()) == ours_) return known;
  Forget(hash);
  return nullptr;
}

// Null: there is no room; or nothing here has the tag, because what the host said of it was dropped.
Owning::Owned* Owning::OwnedOf(const Tag& tag, std::uint64_t hash, std::uint32_t peer, Instant now) {
  if (Owned* const known = Find(hash)) return known;
  bool taken = false;
  LookAt(ways_, tag, hash, peer, now, [&](const Look& look) {
    const auto& gauges = ways_.core().gauges;
    taken = look.slot != nullptr || look.foretold || (gauges != nullptr && gauges->Knows(hash));
  });
  return taken ? Add(tag, hash, peer) : nullptr;
}

// REQUIRES: it is not known. Null: there is no room for it.
Owning::Owned* Owning::Add(const Tag& tag, std::uint64_t hash, std::uint32_t peer) {
  if (room_.full()) {
    ++counts_.crowded;
    const auto gives_way = room_.GivesWay(peer);
    if (!gives_way) return nullptr;
    Forget(*gives_way);
  }
  Owned& owned = tags_.Add(hash);
  owned.place = room_.Add(hash, peer);
  owned.list = list_;
  owned.tag = tag.bytes;
  owned.is_digest = tag.is_digest;
  return &owned;
}

void Owning::Leave(const Owned& owned) {
  room_.Remove(owned.place, [&](std::uint64_t hash) -> TagRoom::Place& { return tags_.Find(hash)->place; });
}

void Owning::Forget(std::uint64_t hash) {
  Leave(*tags_.Find(hash));
  tags_.Erase(hash);
}

// Whether more is missing in the bucket than these hits: this host's own, or those of hosts that no longer use the tag.
bool Owning::UsedBefore(const Owned& owned, std::uint64_t hash, std::uint64_t hits, Instant now) {
  constexpr Tokens kRounding = 1e-3;
  bool before = false;
  LookAt(ways_, owned.said(), hash, kNobody, now, [&](const Look& look) {
    const Shape& shape = look.limit.shape;
    before = shape.burst() - look.bucket().Level(shape, now) > static_cast<double>(hits) + kRounding;
  });
  return before;
}

Owning::User& Owning::UserOf(Owned& owned, std::uint32_t peer) {
  // Numbers are dense and ascend, so where most hosts use a tag, a user's place is its number or a little less.
  const auto begin = owned.users.begin();
  auto last = begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(owned.users.size(), peer)), first = last;
  for (std::ptrdiff_t step = 1; first != begin && (first - 1)->peer >= peer; step *= 2) {
    last = first - 1;
    first -= std::min(step, first - begin);
  }
  const auto at = std::lower_bound(first, last, peer,
                                   [](const User& user, std::uint32_t number) { return user.peer < number; });
  if (at != owned.users.end() && at->peer == peer) return *at;
  // It has heard nothing of the tag, which others may have used before.
  return *owned.users.insert(at, User{peer, false, false, false, 0, 0, {}, Instant::min()});
}

Owning::Host& Owning::HostOf(std::uint32_t peer) {
  if (hosts_.size() <= peer) hosts_.resize(peer + 1);
  Host& host = hosts_[peer];
  hosts_heard_ += !std::exchange(host.heard, true);
  return host;
}

void Owning::Change(Owned& owned, std::uint64_t hash, Instant now) {
  ++owned.changes;
  if (std::exchange(owned.changed, true)) return;
  changed_.push_back(hash);
  TellAt(now + kTellEvery);
}

// ---- What is told ----

void Owning::Due(User& user, std::uint64_t hash) {
  if (std::exchange(user.due, true)) return;
  HostOf(user.peer).due.push_back(hash);
}

// Whether all users are to hear of the tag, or everybody.
void Owning::Judge(std::uint64_t hash, Instant now) {
  Owned* const known = Find(hash);
  if (known == nullptr) return;
  Owned& owned = *known;
  owned.changed = false;
  owned.nearly_full = false;
  bool all = false, near = false;
  LookAt(ways_, owned.said(), hash, kNobody, now, [&](const Look& look) {
    const Tokens level = look.level(now);
    owned.nearly_full = look.nearly_full(now);
    if (look.foretold) all = Strays(owned, look.pace, level, look.foretold->demand, now);
    near = IsNear(owned, level, look.pace, now);
  });
  if (all) TellUsers(owned, hash, now);
  if (near) near_.push_back(hash);
}

// Foretells what users believe since they were told, by their own law, and compares it with the truth.
bool Owning::Strays(Owned& owned, const Pace& pace, Tokens level, double demand, Instant now) {
  Pace often = pace;
  often.period = pace.period / kPushesOfPeriod;
  const double dt = owned.told ? Seconds(now - owned.told_at) : 0;
  if (owned.told && dt > 0) {
    owned.budget.Step(often, dt);
    const Tokens target = pace.Target(owned.budget.Threshold(often));
    const Tokens foretold = owned.demand * Earned(pace, owned.demand, owned.level, target, dt);
    owned.level = std::min(owned.level + pace.rate * dt - foretold, pace.burst);
    owned.told_at = now;
  }
  const bool far = pace.FarKept(std::min(level, owned.level)) > 0;
  const Tokens threshold = std::max(owned.budget.Threshold(often), far ? pace.FarNews() : 0);
  const bool strays = std::abs(level - owned.level) >= threshold ||
                      std::abs(demand - owned.demand) * kMovedWithin >= threshold;
  if (owned.told && !strays) return false;
  owned.budget.Sent(often, owned.told);
  owned.told = true;
  owned.level = level;
  owned.demand = demand;
  owned.told_at = now;
  return true;
}

void Owning::TellUsers(Owned& owned, std::uint64_t hash, Instant now) {
  ++counts_.pushes;
  std::erase_if(owned.users, [&](const User& user) { return !user.due && now - user.named > kUserMax; });
  for (User& user : owned.users) Due(user, hash);
}

void Owning::TellPlaces(Instant now) {
  for (const std::uint64_t hash : places_.Judge(now)) {
    const Owned* const known = Find(hash);
    if (known == nullptr) continue;
    for (const User& user : known->users) {
      if (now - user.named <= kUserMax) places_.Owe(user.peer, hash);
    }
  }
}

bool Owning::IsNear(Owned& owned, Tokens level, const Pace& pace, Instant now) const {
  const auto [rate, burst] = std::pair(pace.rate, pace.burst);
  if (level >= kNearOfBurst * burst || owned.users.size() >= hosts_heard_) return false;
  const Duration since = now - owned.near_at;
  const bool again = since >= kNearPeriods * ToDuration(ways_.core().window);
  const Tokens believed = owned.near_level + rate * Seconds(since);    // where nobody else knows of the tag
  const bool deeper = level < believed - kNearStep * burst && since >= kNearGap;
  if (!again && !deeper) return false;
  owned.near_at = now;
  owned.near_level = level;
  return true;
}

bool Owning::Tell(Instant now) {
  tell_at_ = Instant::max();
  for (const std::uint64_t hash : std::exchange(changed_, {})) Judge(hash, now);
  if (now >= places_.next()) TellPlaces(now);
  bool room = true;
  for (std::uint32_t peer = 0; peer < hosts_.size() && room; ++peer) {
    Host& host = hosts_[peer];
    if (!host.answer && host.due.empty() && !places_.owes(peer)) continue;
    if (now - host.told_at < kHostGap) {
      TellAt(host.told_at + kHostGap);
    } else {
      room = TellHost(peer, host, now);
    }
  }
  room = penalties_.Tell(now) && quotas_.Tell(now) && room;
  room = room && TellNear(now);
  ForgetSome(now);
  if (!room) TellAt(now + kTellEvery);
  return false;
}

// Tells the host what it is owed, in one frame. False: the other side has no room for it.
bool Owning::TellHost(std::uint32_t peer, Host& host, Instant now) {
  if (to_peers_.full()) return false;
  ToPeers levels;
  levels.kind = ToPeers::Kind::kLevels;
  levels.to = now;
  levels.peer = peer;
  levels.counted = host.counted;
  levels.hosts = ways_.core().abroad;
  bool full = false;
  while (!host.due.empty() && !full) {
    const std::uint64_t hash = host.due.back();
    if (Owned* const known = Find(hash)) {
      Owned& owned = *known;
      User& user = UserOf(owned, peer);
      const bool others = owned.changes - user.answered > user.own || user.again;
      if (others) {
        LookAt(ways_, owned.said(), hash, peer, now, [&](const Look& look) {
          const auto left = std::chrono::ceil<std::chrono::microseconds>(look.bucket().UntilFull(now)).count();
          Besides said;
          if (look.foretold) {
            const OwnersWord& word = look.foretold->to_peer;
            said.demand = Thousandths(word.demand, kDemandMax);
            said.back = Thousandths(look.bucket().Level(look.limit.shape, now) - word.level, kTokensBackMax);
          }
          full = !levels.entries.Add(owned.said(), static_cast<std::uint64_t>(left), 0, said);
          user.lower = !look.nearly_full(now);
        });
      }
      if (full) break;
      user.due = user.again = false;
      if (others) user.told = now;
      user.answered = owned.changes;
      user.own = 0;
      counts_.told += others;
    }
    host.due.pop_back();
  }
  host.answer = !quotas_.AddAnswers(peer, now, levels.entries) || !places_.AddAnswers(peer, now, levels.entries) ||
                !members_.AddAnswers(peer, now, levels.entries);
  host.told_at = now;
  if (host.answer || !host.due.empty()) TellAt(now + kHostGap);
  to_peers_.TryPush(std::move(levels));
  return true;
}

// What finds no room in the frame waits for the next one. Each kind comes first in its turn, so none takes all frames.
bool Owning::TellNear(Instant now) {
  if (waiting() == 0) return true;
  if (now - near_at_ < kNearGap || near_frames_.Left(now) < 1) {
    TellAt(std::max(near_at_, now) + kNearGap);
    return true;
  }
  if (to_peers_.full()) return false;
  constexpr std::size_t kKinds = 3;
  Entries entries;
  for (std::size_t i = 0; i < kKinds; ++i) {
    switch ((turn_ + i) % kKinds) {
      case 0:
        quotas_.AddNews(now, entries);
        break;
      case 1:
        places_.AddNews(now, entries);
        break;
      default:
        AddNear(now, entries);
    }
  }
  ++turn_;
  near_at_ = now;
  if (waiting() > 0) TellAt(now + kNearGap);
  if (!entries.empty() && near_frames_.Take(now)) to_peers_.TryPush(NearFrame(ways_.core(), std::move(entries), now));
  return true;
}

// Adds tags that are near their limit.
void Owning::AddNear(Instant now, Entries& out) {
  constexpr std::size_t kWaitingMax = kEntriesMax;
  std::size_t done = 0;
  for (bool full = false; done < near_.size(); ++done) {
    const Owned* const known = Find(near_[done]);
    if (known == nullptr) continue;
    if (near_room_.Left(now) < 1) {
      ++counts_.near.cut;
      continue;
    }
    LookAt(ways_, known->said(), near_[done], kNobody, now, [&](const Look& look) {
      const double left = std::max((look.pace.burst - look.level(now)) / look.pace.rate, 0.0);
      const auto micros = static_cast<std::uint64_t>(std::min(left * 1e6, static_cast<double>(kMicrosecondsMax)));
      full = !out.Add(known->said(), micros, 0);
    });
    if (full) break;
    near_room_.Spend(1);
    ++counts_.near.told;
  }
  near_.erase(near_.begin(), near_.begin() + static_cast<std::ptrdiff_t>(done));
  if (near_.size() <= kWaitingMax) return;
  counts_.near.cut += near_.size() - kWaitingMax;
  near_.resize(kWaitingMax);
}

// Forgets tags that no host has named for a while, a part of them at a time.
void Owning::ForgetSome(Instant now) {
  if (now < forget_at_) return;
  forget_at_ = now + kForgetEvery;
  for (std::size_t i = 0; i < kForgetParts; ++i, forget_part_ = (forget_part_ + 1) % tags_.kParts) {
    tags_.EraseIf(forget_part_, [&](Owned& owned) {
      std::erase_if(owned.users, [&](const User& user) { return !user.due && now - user.named > kUserMax; });
      const bool unused = owned.users.empty() && !owned.changed && now - owned.beside_at > kUserMax;
      if (unused) Leave(owned);
      return unused;
    });
  }
}

void Owning::KeepOwned(std::shared_ptr<const Owners> owners, std::string_view name) {
  owners_ = std::move(owners);
  ours_ = owners_->Find(name);
  ++list_;
}

OwningCounts Owning::counts() const {
  OwningCounts counts = counts_;
  counts.tags = tags_.size();
  counts.near.waiting = waiting();
  return counts;
}

}    // namespace dthrottle
