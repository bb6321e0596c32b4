#include "share/debit/sharing.h"

#include <algorithm>
#include <utility>

namespace dthrottle {

namespace {

constexpr std::size_t kEntriesPerSlice = 256;
constexpr Duration kTakenFor = std::chrono::minutes(1);    // owners say within seconds what they have not counted

}    // namespace

Sharing::Sharing(Ways& ways, ToPeersRing& to_peers, FromPeersRing& from_peers, std::size_t peers, Duration period,
                 Prng& prng, Instant now)
    : ways_(ways),
      debits_(ways.Get<Debits>()),
      from_peers_(from_peers),
      peers_(peers),
      period_(period),
      outlet_(to_peers),
      ownership_(ways, to_peers),
      collecting_(ways, outlet_, ownership_, period, now),
      walk_(ways, outlet_, ownership_) {
  ways_.core().ownership = &ownership_;
  ways_.core().here = peers + 1;
  debits_.ShareWith(peers, period);
  Hold(false);
  report_at_ = now + Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(period.count()))));
}

void Sharing::Hold(bool holding) {
  holding_ = holding;
  ways_.SetHeard(!holding_ && !leaving_ && peers_ > 0);
}

Sharing::~Sharing() {
  ways_.core().ownership = nullptr;
  ways_.SetHeard(false);
}

void Sharing::HoldHits() {
  Hold(true);
}

void Sharing::ReportNow(Instant now) {
  report_at_ = now;
  leaving_ = true;
  collecting_.TakeAll();
  Hold(false);
}

bool Sharing::Drain(Instant now) {
  outlet_.Retry();
  leaving_ = true;
  collecting_.BreakOff();
  if (walk_.walking()) {
    walk_.BreakOff();
    incoming_ = FromPeers();
  }
  if (!collecting_.Push(now)) return false;
  return !MergeSome(now) && incoming_.kind == FromPeers::Kind::kNone;
}

Sharing::Kept Sharing::Keep() const {
  LimiterCore& core = ways_.core();
  Kept kept{.from = collecting_.from(), .report_at = report_at_, .holding = holding_};
  kept.returnable = debits_.returnable().Keep();
  if (Quotas* const quotas = ways_.quotas()) kept.quotas = quotas->Keep(core.ShardLock());
  if (core.gauges != nullptr) {
    core.gauges->ForEachHere(core.ShardLock(), [&](const Tag& tag, std::size_t) {
      kept.in_flight.push_back({std::string(tag.bytes), tag.is_digest});
    });
  }
  return kept;
}

void Sharing::Resume(const Kept& kept, Instant now) {
  for (const KeptTagOf& its : kept.in_flight) {
    LimiterCore& core = ways_.core();
    if (core.gauges == nullptr || its.tag.size() > kTagBytesMax) continue;
    const Tag tag{its.tag, its.is_digest};
    const std::uint64_t hash = core.table->Hash(tag);
    const Table::Shard shard(*core.table, hash);
    core.gauges->Changed(tag, hash);
  }
  debits_.returnable().Resume(kept.returnable);
  if (Quotas* const quotas = ways_.quotas()) quotas->Resume(kept.quotas, ways_.core().ShardLock());
  collecting_.GoOnFrom(std::min(kept.from, now));
  report_at_ = std::clamp(kept.report_at, now, now + period_);
  Hold(kept.holding);
}

void Sharing::OwnedBy(const std::shared_ptr<const Owners>& owners, std::string_view name) {
  ownership_.Call(name);
  ownership_.Change(owners);
}

void Sharing::SetPeers(std::size_t peers) {
  ways_.core().here = peers + 1;
  peers += ways_.core().abroad;
  if (peers == peers_) return;
  peers_ = peers;
  debits_.ShareWith(peers, period_);
  Hold(holding_);
}

Instant Sharing::next() const {
  if (outlet_.retry_at()) return *outlet_.retry_at();
  const Instant urgent = holding_ ? Instant::max() : collecting_.urgent_at();
  return std::min({report_at_, urgent, owning() != nullptr ? owning()->next() : Instant::max()});
}

bool Sharing::Work(Instant now) {
  outlet_.Retry();
  if (now >= report_at_ && !collecting_.running()) EndPeriod(now);
  bool more = false;
  if (walk_.walking()) {
    // While this goes on nothing is merged and nothing collected: a peer that is told where in our reports the snapshot
    // stands must find in it exactly what they said until then.
    if (walk_.Go(now)) incoming_ = FromPeers();
    more = true;
  } else {
    if (!holding_ && now >= collecting_.urgent_at()) more = collecting_.GoUrgent(now);
    if (collecting_.running()) more = collecting_.Go(now) || more;
    more = MergeSome(now) || more;
    Owning* const owning = ownership_.owning();
    if (owning != nullptr && now >= owning->next()) more = owning->Tell(now) || more;
  }
  return more && !outlet_.retry_at();
}

void Sharing::EndPeriod(Instant now) {
  debits_.Certify(now);
  ownership_.JudgeSilent(period_, now);
  if (holding_) {
    ToPeers alive;
    alive.kind = ToPeers::Kind::kPeriodEnd;
    alive.from = alive.to = now;
    outlet_.ring().TryPush(std::move(alive));
  } else {
    if (!taken_.empty() && now > taken_at_ + kTakenFor) taken_ = {};
    if (owning() != nullptr) ownership_.owning()->PeriodEnds(now);
    collecting_.Begin(now);
  }
  report_at_ += period_ * ((now - report_at_) / period_ + 1);    // a period that was slept through is not made up for
}

bool Sharing::MergeSome(Instant now) {
  if (incoming_.kind == FromPeers::Kind::kNone) {
    if (!from_peers_.TryPop(incoming_)) return false;
    merged_ = 0;
  }
  switch (incoming_.kind) {
    case FromPeers::Kind::kJoined:
      Hold(false);
      return Drop();
    case FromPeers::Kind::kOwners:
      return ChangeOwners(now);
    case FromPeers::Kind::kHostCame:
      if (owning() != nullptr) {
        ownership_.owning()->penalties().TellTo(incoming_.peer, ownership_, now);
        ownership_.owning()->quotas().TellTo(incoming_.peer);
      }
      return Drop();
    case FromPeers::Kind::kHostBarred:
      debits_.beside().Bar(incoming_.peer, now);
      return Drop();
    case FromPeers::Kind::kSnapshotWanted:
      return leaving_ ? Drop() : BeginSnapshot(now);    // another host can give it
    default:
      break;
  }
  const std::size_t n = std::min(incoming_.entries.size() - merged_, kEntriesPerSlice);
  Merge(n, now);
  merged_ += n;
  if (merged_ == incoming_.entries.size()) EndMerge(now);
  return incoming_.kind != FromPeers::Kind::kNone || !from_peers_.empty();
}

// Ends with incoming_; whether there is another one.
bool Sharing::Drop() {
  incoming_ = FromPeers();
  return !from_peers_.empty();
}

// What has been collected is cut by the list before, and so is what is collected now; what this host served and nobody
// collected yet is reported by the new one. Hence what is handed over is without that.
bool Sharing::ChangeOwners(Instant now) {
  if (collecting_.running() || !collecting_.Push(now)) return true;
  if (!outlet_.Push(ToPeers::Kind::kOwners, {}, now)) return true;
  const bool gives = owning() != nullptr;
  if (incoming_.awaits_tags) Hold(true);
  ownership_.Change(incoming_.owners);
  ways_.Each([](auto& way) { way.Joined(); });    // new owners are to know what is counted
  debits_.beside().TellPenaltiesAgain(now);
  if (!gives) return Drop();
  walk_.BeginHandover();
  return true;
}

// What has been collected already is in the buckets, so it has to be in a report that is out before the snapshot.
bool Sharing::BeginSnapshot(Instant now) {
  if (!collecting_.Push(now)) return true;
  if (!outlet_.Push(ToPeers::Kind::kSnapshotBegin, {}, now, incoming_.snapshot)) return true;
  walk_.BeginSnapshot(incoming_.snapshot);
  if (owning() == nullptr) debits_.beside().TellPenaltiesAgain(now);    // an owner tells who comes
  ways_.Each([](auto& way) { way.Joined(); });
  return true;
}

// The next `n` entries of incoming_.
void Sharing::Merge(std::size_t n, Instant now) {
  const FromPeers& in = incoming_;
  const bool of_owner = in.kind == FromPeers::Kind::kLevels || in.kind == FromPeers::Kind::kNear;
  if (of_owner && merged_ == 0) ownership_.Heard(in.owner, in.life, period_, now);
  Speaker peer(in.peer, in.period);
  peer.place = in.place;
  switch (in.kind) {
    case FromPeers::Kind::kLevels:
      return debits_.buckets().Adopt(in.entries, merged_, n, in.to, in.from, collecting_.until(), now, peer);
    case FromPeers::Kind::kHandover:
      taken_at_ = now;
      return debits_.buckets().TakeOver(in.entries, merged_, n, in.to, taken_, now);
    case FromPeers::Kind::kOwnDebits:
      if (merged_ == 0) std::sort(taken_.begin(), taken_.end());
      return debits_.buckets().DebitOwn(in.entries, merged_, n, in.from, in.to, taken_, now);
    case FromPeers::Kind::kNear:
      return debits_.buckets().HearNear(in.entries, merged_, n, in.to, now, peer);
    case FromPeers::Kind::kDebits:
      debits_.Debit(in.entries, merged_, n, in.from, in.to, now, peer);
      if (const auto observer = ways_.core().observed.observer()) {
        observer->Heard(in.entries, merged_, n, in.from, in.to, peer, now);
      }
      if (owning() != nullptr) ownership_.owning()->Named(in.entries, merged_, n, in.peer, in.to, now);
      return;
    default:
      return debits_.buckets().Merge(in.entries, merged_, n, in.to, now);
  }
}

void Sharing::EndMerge(Instant now) {
  Owning* const owning = ownership_.owning();
  if (owning != nullptr && incoming_.kind == FromPeers::Kind::kOwnDebits) owning->NamedHere(incoming_.entries, now);
  if (owning != nullptr && incoming_.kind == FromPeers::Kind::kDebits) {
    if (counted_ != nullptr && incoming_.stream != 0) counted_->Note(incoming_.stream, incoming_.counted);
    owning->Counted(incoming_.peer, incoming_.counted, now);
  }
  if (owning == nullptr && incoming_.kind == FromPeers::Kind::kLevels && incoming_.hosts > 1) {
    SetPeers(incoming_.hosts - 1);
  }
  incoming_ = FromPeers();
}

}    // namespace dthrottle
