#include "share/debit/sharing.h"

#include <algorithm>
#include <utility>

#include "share/debit/word.h"

namespace dthrottle {

namespace {

constexpr std::size_t kGroupsPerSlice = 64;
constexpr std::size_t kEntriesPerSlice = 256;
constexpr std::size_t kCellsPerSlice = 2048;

// How soon to try again when the other side has no room.
constexpr Duration kRetryReports = std::chrono::milliseconds(5);

// The longest that an interval reaches back after a start: no horizon is longer.
constexpr Duration kIntervalMax = std::chrono::minutes(5);
constexpr Duration kTakenFor = std::chrono::minutes(1);    // owners say within seconds what they have not counted

struct Never {
  bool operator()(const Tag&, const Slot&) const { return false; }
};

template <class Add, class Wait = Never>
class Visitor final : public SlotVisitor {
 public:
  explicit Visitor(Add add, Wait can_wait = {}) : add_(std::move(add)), can_wait_(std::move(can_wait)) {}
  bool Visit(const Tag& tag, const Slot& slot, const Waste& waste) override { return add_(tag, slot, waste); }
  bool CanWait(const Tag& tag, const Slot& slot) override { return can_wait_(tag, slot); }

 private:
  Add add_;
  Wait can_wait_;
};

}    // namespace

Sharing::Sharing(Ways& ways, ToPeersRing& to_peers, FromPeersRing& from_peers, std::size_t peers, Duration period,
                 Prng& prng, Instant now)
    : ways_(ways),
      debits_(ways.Get<Debits>()),
      table_(*ways.core().table),
      to_peers_(to_peers),
      from_peers_(from_peers),
      peers_(peers),
      period_(period) {
  if (reported_until() == 0) reported_until() = static_cast<std::uint64_t>(now.time_since_epoch().count());
  from_ = std::clamp(FromNanoseconds(static_cast<std::int64_t>(reported_until())), now - kIntervalMax, now);
  debits_.ShareWith(peers, period);
  Hold(false);
  report_at_ = now + Duration(static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(period.count()))));
}

// In nanoseconds of the clock that the table's buckets go by; 0: never. It lies beside the table, so that hits which a
// life before could not report before it was killed are reported as of an interval that contains them.
std::uint64_t& Sharing::reported_until() const {
  return table_.words().back();
}

void Sharing::Hold(bool holding) {
  holding_ = holding;
  ways_.SetHeard(!holding_ && !leaving_ && peers_ > 0);
}

Sharing::~Sharing() {
  ways_.SetHeard(false);
}

void Sharing::HoldHits() {
  Hold(true);
}

void Sharing::ReportNow(Instant now) {
  report_at_ = now;
  leaving_ = true;
  Hold(false);
}

bool Sharing::Drain(Instant now) {
  retry_at_.reset();
  leaving_ = true;
  collecting_ = false;
  if (walk_ != Walk::kNone) {
    walk_ = Walk::kNone;
    incoming_ = FromPeers();
    outgoing_ = ToPeers();
  }
  if (!PushHits(now) || !PushUrgent(now)) return false;
  return !MergeSome(now) && incoming_.kind == FromPeers::Kind::kNone;
}

Sharing::Kept Sharing::Keep() const {
  LimiterCore& core = ways_.core();
  Kept kept{from_, report_at_, holding_};
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
    const std::uint64_t hash = table_.Hash(tag);
    const Table::Shard shard(table_, hash);
    core.gauges->Changed(tag, hash);
  }
  from_ = std::min(kept.from, now);
  report_at_ = std::clamp(kept.report_at, now, now + period_);
  Hold(kept.holding);
}

void Sharing::OwnedBy(const std::shared_ptr<const Owners>& owners, std::string_view name) {
  owners_ = owners;
  name_ = name;
  if (owners_ != nullptr && owners_->Find(name_)) owning_ = std::make_unique<Owning>(ways_, to_peers_);
}

// What has been collected is cut by the list before, and so is what is collected now; what this host served and nobody
// collected yet is reported by the new one. Hence what is handed over is without that.
bool Sharing::ChangeOwners(Instant now) {
  if (collecting_ || !PushHits(now) || !PushUrgent(now)) return true;
  if (!Push(ToPeers::Kind::kOwners, now)) return true;
  const bool gives = owning_ != nullptr;
  owners_before_ = std::exchange(owners_, incoming_.owners);
  if (incoming_.awaits_tags) Hold(true);
  if (!owners_->Find(name_)) {
    owning_.reset();
  } else if (owning_ == nullptr) {
    owning_ = std::make_unique<Owning>(ways_, to_peers_);
  } else {
    owning_->KeepOwned(*owners_, name_);
  }
  if (gives) {
    walk_ = Walk::kTable;
    walk_cell_ = 0;
    return true;
  }
  incoming_ = FromPeers();
  return !from_peers_.empty();
}

// A tag that has another owner now is handed over, of all others a snapshot has what is known here.
bool Sharing::AddWalked(const Tag& tag, const Slot& slot, Instant now) {
  if (incoming_.kind != FromPeers::Kind::kOwners) return debits_.AddBucket(tag, slot, now, outgoing_.entries);
  const auto is_ours = [&](const Owners& owners) { return owners.name(owners.Of(tag)) == name_; };
  return !is_ours(*owners_before_) || is_ours(*owners_) || debits_.AddOwned(tag, slot, now, outgoing_.entries);
}

void Sharing::SetPeers(std::size_t peers) {
  if (peers == peers_) return;
  peers_ = peers;
  debits_.ShareWith(peers, period_);
  Hold(holding_);
}

Instant Sharing::next() const {
  if (retry_at_) return *retry_at_;
  return std::min({report_at_, UrgentAt(), owning_ != nullptr ? owning_->next() : Instant::max()});
}

bool Sharing::Work(Instant now) {
  retry_at_.reset();
  if (now >= report_at_ && !collecting_) {
    debits_.Certify(now);
    if (holding_) {
      ToPeers alive;
      alive.kind = ToPeers::Kind::kPeriodEnd;
      alive.from = alive.to = now;
      to_peers_.TryPush(std::move(alive));
    } else {
      collecting_ = true;
      to_ = now;
      if (!taken_.empty() && now > taken_at_ + kTakenFor) taken_ = {};
      debits_.TellPlacesAgain();
      ways_.Each([&](auto& way) { way.PeriodEnds(now); });
    }
    report_at_ += period_ * ((now - report_at_) / period_ + 1);    // a period that was slept through is not made up for
  }
  bool more = false;
  if (walk_ != Walk::kNone) {
    more = WalkSome(now);
  } else {
    if (now >= UrgentAt()) more = CollectUrgent(now);
    if (collecting_) more = Collect(now) || more;
    more = MergeSome(now) || more;
    if (owning_ != nullptr && now >= owning_->next()) more = owning_->Tell(now) || more;
  }
  return more && !retry_at_.has_value();
}

// Hands `message` over, which is empty then; false if there is no room now.
bool Sharing::Push(ToPeers& message, Instant now) {
  if (!to_peers_.TryPush(std::move(message))) {
    retry_at_ = now + kRetryReports;
    return false;
  }
  message = ToPeers();
  return true;
}

bool Sharing::Push(ToPeers::Kind kind, Instant now) {
  outgoing_.kind = kind;
  return Push(outgoing_, now);
}

// Hits that waited may have begun before the interval of this report: those of a watched tag wait for two periods and
// then for the next walk through the table.
bool Sharing::PushHits(Draft& draft, ToPeers::Kind kind, Instant to, Instant now) {
  if (draft.entries.empty()) return true;
  ToPeers message;
  message.kind = kind;
  message.from = draft.Stamp(from_, to, kReachPeriods * period_);
  message.to = to;
  if (owning_ != nullptr && !to_peers_.full()) owning_->NamedHere(draft.entries, now);
  message.entries = std::move(draft.entries);
  if (!Push(message, now)) {
    draft.entries = std::move(message.entries);
    return false;
  }
  draft.Clear();
  return true;
}

Instant Sharing::UrgentAt() const {
  return holding_ ? Instant::max() : std::max(urgent_from_, ways_.urgent_at());
}

// Hits of tags that cannot wait. They happened until now, before the next report of all.
bool Sharing::CollectUrgent(Instant now) {
  if (!PushUrgent(now)) return true;
  urgent_to_ = now;
  const bool more = ways_.ReportUrgent(from_, now, urgent_);
  urgent_from_ = more ? now : now + Way::kUrgentEvery;
  return !PushUrgent(now) || more;
}

bool Sharing::Collect(Instant now) {
  bool full = false;
  Visitor visitor(
      [&](const Tag& tag, const Slot& slot, const Waste& waste) {
        full = !debits_.AddHits(tag, slot, waste, from_, to_, hits_);
        return !full;
      },
      [&](const Tag& tag, const Slot& slot) {
        const Limit& limit = ways_.core().limit(slot.limit);
        return !leaving_ && ways_.With(limit, [&](auto& way) { return way.CanWait(tag, to_); });
      });
  const bool more = table_.TakeUnreported(kGroupsPerSlice, visitor);
  if (full || !more) {
    if (!PushHits(now)) return true;
  }
  if (more) return true;
  outgoing_.to = to_;
  if (!Push(ToPeers::Kind::kPeriodEnd, now)) return true;
  from_ = to_;
  reported_until() = static_cast<std::uint64_t>(from_.time_since_epoch().count());
  collecting_ = false;
  return false;
}

bool Sharing::MergeSome(Instant now) {
  if (incoming_.kind == FromPeers::Kind::kNone) {
    if (!from_peers_.TryPop(incoming_)) return false;
    merged_ = 0;
  }
  if (incoming_.kind == FromPeers::Kind::kJoined) {
    Hold(false);
    incoming_ = FromPeers();
    return !from_peers_.empty();
  }
  if (incoming_.kind == FromPeers::Kind::kOwners) return ChangeOwners(now);
  if (incoming_.kind == FromPeers::Kind::kSnapshotWanted && leaving_) {    // another host can give it
    incoming_ = FromPeers();
    return !from_peers_.empty();
  }
  if (incoming_.kind == FromPeers::Kind::kSnapshotWanted) {
    // What has been collected already is in the buckets, so it has to be in a report that is out before the snapshot.
    if (!PushHits(now) || !PushUrgent(now)) return true;
    outgoing_.snapshot = incoming_.snapshot;
    if (!Push(ToPeers::Kind::kSnapshotBegin, now)) return true;
    walk_ = Walk::kTable;
    walk_cell_ = 0;
    debits_.TellPenaltiesAgain(now);
    debits_.TellPlacesAgain();
    ways_.Each([](auto& way) { way.Joined(); });
    return true;
  }
  const std::size_t n = std::min(incoming_.entries.size() - merged_, kEntriesPerSlice);
  if (incoming_.kind == FromPeers::Kind::kLevels) {
    debits_.Adopt(incoming_.entries, merged_, n, incoming_.to, incoming_.from, collecting_ ? to_ : from_, now);
  } else if (incoming_.kind == FromPeers::Kind::kHandover) {
    debits_.TakeOver(incoming_.entries, merged_, n, incoming_.to, taken_, now);
    taken_at_ = now;
  } else if (incoming_.kind == FromPeers::Kind::kOwnDebits) {
    if (merged_ == 0) std::sort(taken_.begin(), taken_.end());
    debits_.DebitOwn(incoming_.entries, merged_, n, incoming_.from, incoming_.to, taken_, now);
  } else if (incoming_.kind == FromPeers::Kind::kNear) {
    debits_.HearNear(incoming_.entries, merged_, n, incoming_.to, now);
  } else if (incoming_.kind == FromPeers::Kind::kDebits) {
    debits_.Debit(incoming_.entries, merged_, n, incoming_.from, incoming_.to, now, incoming_.peer);
    if (const auto observer = ways_.core().observed.observer()) {
      observer->Heard(incoming_.entries, merged_, n, incoming_.from, incoming_.to, incoming_.peer, now);
    }
    if (owning_ != nullptr) owning_->Named(incoming_.entries, merged_, n, incoming_.peer, now);
  } else {
    debits_.Merge(incoming_.entries, merged_, n, incoming_.to, now);
  }
  merged_ += n;
  if (merged_ == incoming_.entries.size()) EndMerge(now);
  return incoming_.kind != FromPeers::Kind::kNone || !from_peers_.empty();
}

void Sharing::EndMerge(Instant now) {
  if (owning_ != nullptr && incoming_.kind == FromPeers::Kind::kOwnDebits) owning_->NamedHere(incoming_.entries, now);
  if (owning_ != nullptr && incoming_.kind == FromPeers::Kind::kDebits) {
    owning_->Counted(incoming_.peer, incoming_.counted, now);
  }
  if (owning_ == nullptr && incoming_.kind == FromPeers::Kind::kLevels && incoming_.hosts > 1) {
    SetPeers(incoming_.hosts - 1);
  }
  incoming_ = FromPeers();
}

// While this goes on nothing is merged and nothing collected: a peer that is told where in our reports the snapshot
// stands must find in it exactly what they said until then.
bool Sharing::WalkSome(Instant now) {
  const bool handing_over = incoming_.kind == FromPeers::Kind::kOwners;
  const auto part = handing_over ? ToPeers::Kind::kHandoverPart : ToPeers::Kind::kSnapshotPart;
  outgoing_.snapshot = incoming_.snapshot;
  outgoing_.to = now;
  if (walk_ == Walk::kTable) {
    // A part has one instant for all of its buckets, so it is handed over as it is after each slice.
    bool full = false;
    Visitor visitor([&](const Tag& tag, const Slot& slot, const Waste&) {
      full = !AddWalked(tag, slot, now);
      return !full;
    });
    if (part_waits_) {
      outgoing_.to = part_at_;
    } else {
      part_more_ = table_.VisitSome(walk_cell_, kCellsPerSlice, visitor, now);
      part_at_ = now;
    }
    part_waits_ = !outgoing_.entries.empty() && !Push(part, now);
    if (part_waits_) return true;
    if (part_more_) return true;
    walk_ = Walk::kEnd;
    outgoing_.snapshot = incoming_.snapshot;
    outgoing_.to = now;
  }
  if (!Push(handing_over ? ToPeers::Kind::kHandoverEnd : ToPeers::Kind::kSnapshotEnd, now)) return true;
  walk_ = Walk::kNone;
  incoming_ = FromPeers();
  return true;
}

}    // namespace dthrottle
