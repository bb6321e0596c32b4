#include "bus/giving.h"

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
  if (given_) return core_.Refuse(route, "busy with another snapshot", id, now);
  if (repairing(now) && WaitsForRepairs(now)) return core_.Refuse(route, "busy with repairs", id, now);
  if (!peer.snapshots.Take(now)) {
    ++core_.counts.excess;
    return core_.Refuse(route, "too often", id, now);
  }
  given_.emplace(Given{route, peer.name, id, ++begun_, now + kLimiterPatience, {}});
  core_.PassAt(given_->deadline);
  // All debits of what has been heard are on their way to the limiter before the marker, and none after.
  std::size_t bytes = 0;
  bool full = false;
  members_.ForEach([&](const Peer& other) {
    // A host counts for each owner anew, so nobody else can go by that.
    if (!other.heard || full || core_.owners != nullptr) return;
    bytes += other.name.size() + 24;
    full = bytes > kPositionsBytesMax || given_->positions.size() + 1 >= kPositionsMax;
    if (!full) given_->positions.push_back({other.name, other.incarnation, other.heard->next()});
  });
  core_.to_limiter.Push({FromPeers::Kind::kSnapshotWanted, {}, {}, given_->number, {}});
}

void Giving::FromLimiter(ToPeers& item, Instant now) {
  const bool begin = item.kind == ToPeers::Kind::kSnapshotBegin, end = item.kind == ToPeers::Kind::kSnapshotEnd;
  if (begin) streams_.Flush(now);    // they are in the table
  if (!given_ || given_->number != item.snapshot) return;
  given_->deadline = now + kLimiterPatience;
  if (begin) {
    const std::uint64_t next = streams_.For(given_->host).ring().next();
    given_->positions.push_back({core_.options.name, core_.options.incarnation, next});
    return;
  }
  Message& m = core_.Begin(end ? MessageKind::kSnapshotEnd : MessageKind::kSnapshot, end ? now : item.to);
  m.snapshot = given_->id;
  m.sequence = end ? given_->parts : ++given_->parts;
  if (end) m.positions = std::move(given_->positions);
  m.entries = ForAsker(given_->host, std::move(item.entries));
  core_.transport.Answer(given_->route, core_.Encoded());
  if (!end) return;
  ++core_.counts.snapshots_given;
  given_.reset();
}

// An owner wants what it owns.
Entries Giving::ForAsker(const std::string& host, Entries entries) const {
  const auto* const owners = core_.owners.get();
  const auto owner = owners != nullptr ? owners->Find(host) : std::nullopt;
  if (!owner) return entries;
  Entries its;
  for (const Entry& e : entries.list()) {
    if (owners->Of(entries.tag(e)) == *owner) its.Add(entries.tag(e), e.value, 0);
  }
  return its;
}

Instant Giving::Pass(Instant now) {
  if (given_ && now >= given_->deadline) given_.reset();
  return given_ ? given_->deadline : ExchangeCore::kNever;
}

}    // namespace dthrottle
