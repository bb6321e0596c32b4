#include "bus/owners/recovering.h"

#include <algorithm>
#include <utility>

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSilentMax = 1s;    // between two signs of life
constexpr Duration kSnapshotMax = 1min;
constexpr Duration kAgain = 250ms;                // after a failure, twice as long after each further one
constexpr int kAgainMax = 5;                      // times twice
constexpr Duration kAskedEvery = 1min;            // where all has come, and more is lost
constexpr double kUsualOf = 8;                    // hosts that make up what is usual
constexpr std::size_t kRecoverBacklogMax = 64;    // items that wait for the limiter

}    // namespace

bool GoOnCounting(ExchangeCore& core, Peer& peer) {
  const CountedStreams* const counted = core.options.counted.get();
  if (counted == nullptr || core.options.fresh_table || !core.OwnsTags()) return false;
  const std::uint64_t life = peer.welcome_incarnation, last_said = peer.welcome_sequence;
  const auto last = counted->Before(counted->NameOf(peer.name, life, peer.welcome_epoch));
  if (!last || *last > last_said || last_said == kLastSequence) return false;
  peer.claim.reset();
  peer.Follow(life, *last + 1);
  peer.heard_epoch = peer.welcome_epoch;
  const std::uint64_t missed = peer.heard->Expect(last_said, Instant::min());    // asked for at once
  peer.link->status.missed += missed, core.counts.missed += missed;
  peer.AskForLevels();
  peer.levels_count = false;
  core.PassSoon();
  return true;
}

void CountUncounted(ExchangeCore& core, const Peer& peer) {
  if (peer.welcome_low <= peer.welcome_sequence) {
    core.counts.owners_dropped += peer.welcome_sequence + 1 - std::max<std::uint64_t>(peer.welcome_low, 1);
  }
}

Recovering::Its Recovering::Find(LinkId link) {
  const auto its = asked_.find(link);
  return its != asked_.end() && its->second.id == core_.in.snapshot ? its : asked_.end();
}

// ---- Asking ----

// When that host is to be asked: never, if it owes nothing or has been.
Instant Recovering::DueOf(const Link& link, Instant now) const {
  const Peer* const peer = link.peer;
  if (peer == nullptr || !peer->owes_snapshot || asked_.contains(link.status.link)) return ExchangeCore::kNever;
  if (now < peer->catch_up_until && peer->behind(now)) return now + Peer::kCatchUpLook;
  return std::max(peer->next_snapshot, now);
}

int Recovering::FailuresOf(LinkId link) const {
  return members_.Find(link)->peer->snapshots_failed;
}

Instant Recovering::Pass(Instant now) {
  Instant next = ExchangeCore::kNever;
  for (auto at = asked_.begin(); at != asked_.end();) {
    const auto its = at++;
    if (now >= its->second.deadline) {
      Fail(its, now);
      continue;
    }
    if (now >= its->second.place_until) Release(its->second);
    next = std::min(next, its->second.has_place ? its->second.place_until : its->second.deadline);
  }
  due_.clear();
  if (!core_.OwnsTags()) return next;
  for (const auto& [id, link] : members_.links()) {
    const Instant due = DueOf(*link, now);
    if (due <= now) due_.push_back(link->status.link);
    if (due > now) next = std::min(next, due);
  }
  // Hosts that have failed come last.
  std::stable_sort(due_.begin(), due_.end(), [this](LinkId a, LinkId b) { return FailuresOf(a) > FailuresOf(b); });
  AskNext(now);
  return due_.empty() ? next : now;    // a pass from now
}

void Recovering::AskNext(Instant now) {
  while (!due_.empty() && places_ < kAtOnce && core_.to_limiter.size() < kRecoverBacklogMax &&
         room_.Left(now) > static_cast<double>(places_) * usual_) {
    const LinkId link = due_.back();
    due_.pop_back();
    Ask(link, now);
  }
}

void Recovering::Ask(LinkId link, Instant now) {
  const Link* const donor = members_.Find(link);
  if (donor == nullptr || DueOf(*donor, now) > now) return;
  const Asked asked{core_.prng.Next() | 1, now + kPlaceMax, now + kSilentMax, now + kSnapshotMax};
  asked_.emplace(link, asked);
  ++places_;
  core_.Begin(MessageKind::kSnapshotWanted, now).snapshot = asked.id;
  core_.transport.Ask(link, core_.Encoded());
  core_.PassAt(asked.place_until);
}

void Recovering::Release(Asked& asked) {
  places_ -= std::exchange(asked.has_place, false);
}

// ---- What comes ----

bool Recovering::OnPart(LinkId link, const Peer& donor, Instant now) {
  const auto its = Find(link);
  if (its == asked_.end()) return false;
  Message& in = core_.in;
  Asked& asked = its->second;
  if (in.sequence == 0 || in.sequence == kLastSequence) return ++core_.counts.junk, true;
  if (!asked.parts.Add(in.sequence, now).fresh) return true;
  asked.deadline = std::min(now + kSilentMax, asked.end);
  asked.entries += in.entries.size();
  room_.Spend(static_cast<double>(in.entries.size()));
  if (asked.entries > kEntriesOfHost) {
    ++core_.counts.implausible;
    Fail(its, now);
    return true;
  }
  // By another list that host may think that more is this owner's.
  const auto ours = core_.owners ? core_.owners->Find(core_.options.name) : std::nullopt;
  Entries entries = ours && donor.levels_count ? core_.owners->PartOf(*ours, in.entries) : Entries();
  if (!entries.empty()) {
    const Instant at = donor.clock.ToOurs(in.to, now);
    core_.to_limiter.Push({FromPeers::Kind::kBuckets, at, at, 0, std::move(entries)});
  }
  Finish(its, now);
  return true;
}

bool Recovering::OnEnd(LinkId link, Instant now) {
  const auto its = Find(link);
  if (its == asked_.end()) return false;
  if (its->second.count) return true;
  its->second.count = core_.in.sequence;
  its->second.deadline = std::min(now + kSilentMax, its->second.end);    // for parts that the end has overtaken
  Finish(its, now);
  return true;
}

bool Recovering::OnRefusal(const Link& link, Instant now) {
  const auto its = Find(link.status.link);
  if (its == asked_.end()) return false;
  Fail(its, now);
  return true;
}

void Recovering::Finish(Its its, Instant now) {
  Asked& asked = its->second;
  if (!asked.count || !asked.parts.missing().empty() || asked.parts.next() - 1 != *asked.count) return;
  usual_ += (static_cast<double>(asked.entries) - usual_) / kUsualOf;
  ++core_.counts.snapshots_taken;
  if (const Link* const link = members_.Find(its->first); link != nullptr && link->peer != nullptr) {
    Peer& donor = *link->peer;
    donor.owes_snapshot = false;
    donor.snapshots_failed = 0;
    donor.next_snapshot = now + kAskedEvery;
  }
  Release(asked);
  asked_.erase(its);
  AskNext(now);
}

void Recovering::Fail(Its its, Instant now) {
  if (const Link* const link = members_.Find(its->first); link != nullptr && link->peer != nullptr) {
    Peer& donor = *link->peer;
    donor.next_snapshot = now + kAgain * (1 << std::min(donor.snapshots_failed++, kAgainMax));
  }
  Release(its->second);
  asked_.erase(its);
  core_.PassSoon();
}

}    // namespace dthrottle
