#include "bus/joining.h"

#include <algorithm>
#include <utility>

#include "bus/owners/recovering.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kJoinMin = 10s;          // or two periods: how long a snapshot may take to begin with
constexpr int kJoinArrivingMax = 6;         // times that, while parts arrive
constexpr Duration kBetterDonor = 500ms;    // wait so long for one that has published something
constexpr Duration kDonorPatience = 2s;     // between two signs of life of a snapshot
constexpr Duration kDonorBusy = 250ms;      // before the next is asked
constexpr int kFailuresMax = 3;
constexpr Duration kLossSnapshotEvery = 1min;
constexpr Duration kRefusedSnapshot = 5s;    // before it is asked for again, other than to join
// A donor says no more than tables hold that are so many times as large as the one here.
constexpr std::size_t kTablesMax = 4;
constexpr std::size_t kBucketBytes = 32;              // in a table, beside its tag, about
constexpr std::size_t kPartBytesMin = 16 * 1024;      // what a part counts for at least

std::size_t BytesOf(const Entries& entries) {
  return std::max(entries.tag_bytes() + kBucketBytes * entries.size(), kPartBytesMin);
}

}    // namespace

// ---- Joining ----

void Joining::OnLink(Instant now) {
  if (joined_ || joining_) return;
  if (knows_counted()) {    // hosts say the rest, and one host's levels would count some of it twice
    joined_ = true;
    return TellJoined();
  }
  joining_ = true;
  began_ = now;
  failures_ = 0;
}

Duration Joining::JoinMax() const {
  return std::max<Duration>(kJoinMin, 2 * core_.options.period);
}

void Joining::TellJoined() {
  if (!std::exchange(told_, true)) core_.to_limiter.Push({FromPeers::Kind::kJoined, {}, {}, 0, {}});
}

void Joining::Stop() {
  joining_ = false;
  joined_ = true;
  TellJoined();
  for (const auto& [id, link] : members_.links()) {
    if (link->peer != nullptr) Start(*link->peer);
  }
}

// A table that begins empty wants all that the peer ever published, if the peer still has it. One that was kept over a
// restart, or that has part of a snapshot, has most of it and would debit it twice.
void Joining::Start(Peer& peer) {
  if (peer.heard || joining_) return;
  if (GoOnCounting(core_, peer)) return;
  peer.heard_epoch = peer.welcome_epoch;
  const bool fresh = core_.options.fresh_table && !part_merged_;
  // An owner that was killed wants all of a host of which it had counted nothing.
  const bool all = core_.counts_from_first || ((fresh || knows_counted()) && peer.welcome_low == 1);
  const bool unlikely = peer.welcome_sequence == kLastSequence;
  if (peer.claim) {    // the snapshot has what is before; a life that the donor has not heard is news from its first
                       // frame
    peer.Follow(peer.welcome_incarnation, 1);
    if (!peer.audit.known()) members_.Hasten(*peer.link);
    return;
  }
  if (between_sites() && fresh && !unlikely) {    // what is left of it, at its time
    return peer.Follow(peer.welcome_incarnation, std::max<std::uint64_t>(peer.welcome_low, 1));
  }
  // An owner takes over what each host has made of its last word meanwhile.
  if (core_.OwnsTags() && !all && peer.welcome_sequence > 0) {
    peer.AskForLevels();
    CountUncounted(core_, peer);
  }
  peer.Follow(peer.welcome_incarnation, all || unlikely ? 1 : peer.welcome_sequence + 1);
  behind_ |= !all && peer.welcome_sequence > 0 && core_.counts.snapshots_taken == 0;
}

Instant Joining::Pass(Instant now) {
  const Instant next = AskForLost(now);
  return std::min(next, Join(now));
}

bool Joining::AnyBehind(Instant now) const {
  for (const auto& [id, link] : members_.links()) {
    if (link->peer != nullptr && link->peer->behind(now)) return true;
  }
  return false;
}

// Where frames were lost for good, and not to join. An owner asks all hosts (owners/recovering.h).
Instant Joining::AskForLost(Instant now) {
  Instant next = ExchangeCore::kNever;
  if (joining_ || taking_ || arrived_ || core_.OwnsTags() || between_sites()) return next;
  for (const auto& [id, link] : members_.links()) {
    Peer* const peer = link->peer;
    if (peer == nullptr || taking_) continue;
    if (!peer->owes_snapshot && !(behind_ && now < peer->silent_at())) continue;
    if (peer->owes_snapshot && now < peer->catch_up_until && AnyBehind(now)) {
      next = std::min(next, now + Peer::kCatchUpLook);
      continue;
    }
    if (peer->next_snapshot <= now) Ask(*link, now);
    next = std::min(next, peer->next_snapshot);
  }
  return next;
}

// Returns when to look again.
Instant Joining::Join(Instant now) {
  if (taking_ && now >= taking_->deadline) {
    if (parts_.empty()) ++failures_;
    Fail(now);
  }
  if (!joining_) {
    const Instant alone_until = told_ ? ExchangeCore::kNever : born_ + JoinMax();    // no link yet
    if (now >= alone_until) TellJoined();
    return taking_ ? taking_->deadline : told_ ? ExchangeCore::kNever : alone_until;
  }
  if (arrived_) return ExchangeCore::kNever;    // Merge goes on
  const bool arriving = taking_ && !parts_.empty();
  const Instant end = began_ + (arriving ? kJoinArrivingMax : 1) * JoinMax();
  const bool alone = members_.alone();
  // Half of a snapshot is worse than none: what is held back may be in it already.
  if (alone || now >= end || (failures_ >= kFailuresMax && !part_merged_)) {
    Stop();
    joined_ = !alone;    // the first other host that is added is a reason to join
    return ExchangeCore::kNever;
  }
  if (taking_) return std::min(end, taking_->deadline);
  if (now < next_donor_) return std::min(end, next_donor_);
  return AskDonor(end, now);
}

// A peer that has published something knows more than one that has just begun too.
Instant Joining::AskDonor(Instant end, Instant now) {
  std::vector<Link*> best;
  bool best_published = false;
  for (const auto& [id, link] : members_.links()) {
    if (link->peer == nullptr) continue;
    const bool published = link->sequence > 0;
    if (published && !best_published) best.clear();
    if (published || !best_published) best.push_back(link.get());
    best_published |= published;
  }
  if (!best_published && now < began_ + kBetterDonor) return began_ + kBetterDonor;
  if (best.size() > 1) std::erase_if(best, [&](Link* link) { return link->status.link == failed_donor_; });
  if (best.empty()) return end;    // a welcome brings us here again
  Ask(*best[core_.prng.Below(best.size())], now);
  return std::min(end, taking_->deadline);
}

// ---- One snapshot ----

std::size_t Joining::BytesMax() const {
  return kTablesMax * core_.options.table_bytes;
}

// Its parts, and the end.
bool Joining::TakesFrame(LinkId link) {
  return taking_ && taking_->donor == link && taking_->frames++ <= BytesMax() / kPartBytesMin;
}

void Joining::Ask(Link& donor, Instant now) {
  taking_.emplace(
      Taking{donor.status.link, core_.prng.Next() | 1, now + kDonorPatience, now + kJoinArrivingMax * JoinMax()});
  donor.peer->owes_snapshot = false;
  if (!joining_) donor.peer->next_snapshot = now + kLossSnapshotEvery;
  core_.Begin(MessageKind::kSnapshotWanted, now).snapshot = taking_->id;
  core_.transport.Ask(donor.status.link, core_.Encoded());
}

void Joining::Fail(Instant next) {
  const Link* const donor = members_.Find(taking_->donor);
  if (joining_) {
    failed_donor_ = taking_->donor;
    next_donor_ = next;
  } else if (donor != nullptr && donor->peer != nullptr) {
    donor->peer->owes_snapshot = true;
  }
  taking_.reset();
  ForgetParts();
  core_.PassSoon();
}

// The donor pays for the rest of a snapshot that was given up: its frames count for peers.max_frames.
void Joining::SpendFrames(Link& link, Instant now) {
  if (!link.frames) link.frames = PeerCeilings::Room(core_.ceilings.frames);
  link.frames->Spend(std::max(link.frames->Left(now), 0.0));
}

void Joining::OnPart(LinkId link, const Peer& donor, std::string_view frame, Instant now) {
  if (!Taken(link)) return;
  const Message& in = core_.in;
  if (in.sequence == 0 || in.sequence == kLastSequence) {
    ++core_.counts.junk;
  } else if (taking_->parts.Add(in.sequence, now).fresh) {
    taking_->bytes += BytesOf(in.entries);
    if (taking_->bytes > BytesMax()) {
      ++core_.counts.implausible;
      SpendFrames(*members_.Find(link), now);
      return Fail(now);
    }
    taking_->deadline = std::min(now + kDonorPatience, taking_->end);
    parts_.push_back({std::string(frame), donor.clock.ToOurs(in.to, now)});
    parts_bytes_ += frame.size();
    parts_overflow_ |= parts_bytes_ > core_.options.held_bytes;
    Finish();
    Merge(now);
  }
}

void Joining::OnEnd(LinkId link, Instant now) {
  if (!Taken(link) || taking_->count) return;
  taking_->count = core_.in.sequence;
  taking_->positions = std::move(core_.in.positions);
  taking_->deadline = std::min(now + kDonorPatience, taking_->end);    // for parts that the end has overtaken
  Finish();
  Merge(now);
}

void Joining::OnRefusal(Link& link, Instant now) {
  if (!Taken(link.status.link)) return;
  Fail(now + kDonorBusy);
  if (link.peer != nullptr) link.peer->next_snapshot = now + kRefusedSnapshot;
}

void Joining::Finish() {
  if (!taking_->count || !taking_->parts.missing().empty() || taking_->parts.next() - 1 != *taking_->count) return;
  arrived_ = std::move(taking_->positions);
  taking_.reset();
  core_.PassSoon();
}

void Joining::ForgetParts() {
  parts_.clear();
  parts_bytes_ = 0;
  parts_overflow_ = false;
}

void Joining::Merge(Instant now) {
  while (merging() && core_.to_limiter.empty()) {
    const Part part = std::move(parts_.front());
    parts_.pop_front();
    if (!core_.DecodeAgain(part.bytes)) continue;
    core_.to_limiter.Push({FromPeers::Kind::kBuckets, part.at, part.at, 0, std::move(core_.in.entries)});
    part_merged_ = true;
  }
  if (!arrived_ || !parts_.empty()) return;
  const std::vector<Position> positions = std::move(*arrived_);
  arrived_.reset();
  ForgetParts();
  ++core_.counts.snapshots_taken;
  behind_ = false;
  if (!joining_) return;    // reports were taken meanwhile, as they came
  for (const Position& p : positions) {
    if (p.sender == core_.options.name || p.incarnation == 0) continue;
    Peer& peer = members_.FindOrAdd(p.sender);
    if (!peer.heard) peer.claim = {p.incarnation, std::max<std::uint64_t>(p.next, 1), now};
  }
  Stop();
}

}    // namespace dthrottle
