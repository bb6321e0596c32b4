#include "bus/giving.h"

#include <algorithm>
#include <utility>

namespace dthrottle {
namespace {

constexpr Duration kLimiterPatience = std::chrono::seconds(10);
// How long requests are turned down for the sake of repairs: a peer that always misses something, or says so, must not
// keep this host from giving snapshots.
constexpr Duration kRepairPatience = std::chrono::seconds(3);
constexpr Duration kAskedAgain = std::chrono::seconds(10);    // so long after the request before, it is another reason
constexpr std::size_t kPositionsBytesMax = 48 * 1024;

}    // namespace

// A position cannot say that something before it is missing; as a rule it soon comes.
bool Giving::repairing(Instant now) const {
  bool any = false;
  members_.ForEach([&](const Peer& peer) {
    any |= peer.link != nullptr && now < peer.silent_at() && peer.heard && !peer.heard->missing().empty();
  });
  return any;
}

bool Giving::WaitsForRepairs(Instant now) {
  if (now - waited_ > kAskedAgain) waiting_since_ = now;
  waited_ = now;
  return now - waiting_since_ < kRepairPatience;
}

void Giving::OnWanted(const Route& route, Peer& peer, Instant now) {
  const std::uint64_t id = core_.in.snapshot;
  if (id == 0) {
    ++core_.counts.junk;
    return;
  }
  const bool owner = core_.owners != nullptr && core_.owners->Find(peer.name);
  if (owner) std::erase_if(waiting_, [&](const Asker& other) { return other.host == peer.name; });
  if (given_ && (!owner || waiting_.size() >= Owners::kMost)) {
    return core_.Refuse(route, "busy with another snapshot", id, now);
  }
  // What others say of their tags is nothing to an owner.
  if (!owner && repairing(now) && WaitsForRepairs(now)) return core_.Refuse(route, "busy with repairs", id, now);
  if (!peer.snapshots.Take(now)) {
    ++core_.counts.excess;
    return core_.Refuse(route, "too often", id, now);
  }
  waiting_.push_back({route, peer.name, id});
  if (!given_) Begin(std::exchange(waiting_, {}), now);
}

void Giving::Begin(std::vector<Asker> askers, Instant now) {
  given_.emplace(Given{++begun_, now + kLimiterPatience, std::move(askers)});
  core_.PassAt(given_->deadline);
  // All debits of what has been heard are on their way to the limiter before the marker, and none after.
  std::vector<Position>& positions = given_->askers.front().positions;
  std::size_t bytes = 0;
  bool full = false;
  members_.ForEach([&](const Peer& other) {
    // A host counts for each owner anew, so nobody else can go by that.
    if (!other.heard || full || core_.owners != nullptr) return;
    bytes += other.name.size() + 24;
    full = bytes > kPositionsBytesMax || positions.size() + 1 >= kPositionsMax;
    if (!full) positions.push_back({other.name, other.incarnation, other.heard->next()});
  });
  core_.to_limiter.Push({FromPeers::Kind::kSnapshotWanted, {}, {}, given_->number, {}});
}

void Giving::FromLimiter(ToPeers& item, Instant now) {
  const bool begin = item.kind == ToPeers::Kind::kSnapshotBegin, end = item.kind == ToPeers::Kind::kSnapshotEnd;
  if (begin) streams_.Flush(now);    // they are in the table
  if (!given_ || given_->number != item.snapshot) return;
  given_->deadline = now + kLimiterPatience;
  if (begin) {
    for (Asker& asker : given_->askers) {
      const std::uint64_t next = streams_.For(asker.host).ring().next();
      asker.positions.push_back({core_.options.name, core_.options.incarnation, next});
    }
    return;
  }
  const auto* const owners = core_.owners.get();
  for (Asker& asker : given_->askers) {
    const auto owner = owners != nullptr ? owners->Find(asker.host) : std::nullopt;
    if (end) {
      if (!asker.its.empty()) SayPart(asker, asker.at, std::exchange(asker.its, {}));
      SayEnd(asker, now);
    } else if (owner) {
      Gather(asker, *owner, item);
    } else {
      SayPart(asker, item.to, item.entries);
    }
  }
  if (end) End(now);
}

// A part of the walk has little of what one owner owns, so several fill one frame. At an earlier instant a bucket is
// farther from full, by the time between.
void Giving::Gather(Asker& asker, std::size_t owner, const ToPeers& part) {
  const Entries its = core_.owners->PartOf(owner, part.entries);
  for (const Entry& e : its.list()) {
    const auto add = [&] {
      if (asker.its.empty()) asker.at = part.to;
      const auto later = std::chrono::ceil<std::chrono::microseconds>(part.to - asker.at).count();
      return asker.its.Add(its.tag(e), std::min(e.value + static_cast<std::uint64_t>(later), kMicrosecondsMax), 0);
    };
    if (add()) continue;
    SayPart(asker, asker.at, std::exchange(asker.its, {}));
    add();
  }
}

void Giving::SayPart(Asker& asker, Instant at, Entries entries) {
  Message& m = core_.Begin(MessageKind::kSnapshot, at);
  m.snapshot = asker.id;
  m.sequence = ++asker.parts;
  m.entries = std::move(entries);
  core_.transport.Answer(asker.route, core_.Encoded());
}

void Giving::SayEnd(Asker& asker, Instant now) {
  Message& m = core_.Begin(MessageKind::kSnapshotEnd, now);
  m.snapshot = asker.id;
  m.sequence = asker.parts;
  m.positions = std::move(asker.positions);
  core_.transport.Answer(asker.route, core_.Encoded());
  ++core_.counts.snapshots_given;
}

void Giving::End(Instant now) {
  given_.reset();
  if (!waiting_.empty()) Begin(std::exchange(waiting_, {}), now);
}

Instant Giving::Pass(Instant now) {
  if (given_ && now >= given_->deadline) End(now);
  return given_ ? given_->deadline : ExchangeCore::kNever;
}

}    // namespace dthrottle
