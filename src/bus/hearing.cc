#include "bus/hearing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "bus/owners/changing.h"
#include "bus/owners/recovering.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kAskedMax = 256;    // sequences in one request to repeat

Duration Wait(const Peer& peer) {
  return std::min<Duration>(peer.period, 1s) / 2;
}

Peer::Room& RoomOf(Peer& peer, const PeerCeilings& ceilings) {
  if (!peer.room) peer.room = {PeerCeilings::Room(ceilings.entries), PeerCeilings::Room(ceilings.hits), kAskedMax};
  return *peer.room;
}

}    // namespace

void Hearing::OnReport(Peer& peer, std::string_view frame, Instant now) {
  const Message& in = core_.in;
  if (in.sequence == 0 || in.sequence == std::numeric_limits<std::uint64_t>::max()) {
    ++core_.counts.junk;
  } else if (joining_.joining() || core_.awaits_tags || !held_.empty()) {
    peer.alive = now;
    Hold(frame, now);
  } else {
    Take(peer, frame.size(), now);
  }
}

void Hearing::Hold(std::string_view frame, Instant now) {
  if (held_bytes_ + frame.size() > core_.options.held_bytes) {
    if (!joining_.joining()) {
      ++core_.counts.overflow;
      return;
    }
    joining_.Stop();    // and then keep at least this one
  }
  held_bytes_ += frame.size();
  held_.push_back({std::string(frame), now});
}

void Hearing::Release() {
  while (releasing() && core_.to_limiter.empty()) {
    const Held frame = std::move(held_.front());
    held_.pop_front();
    held_bytes_ -= frame.bytes.size();
    if (!core_.DecodeAgain(frame.bytes)) continue;
    if (Peer* peer = members_.Linked(core_.in.sender); peer != nullptr) {
      Take(*peer, frame.bytes.size(), frame.arrival);
    }
  }
}

// False if the message is of a life that does not count: one that the peer's own welcome has not stated. The next hello
// shows whether there is a new one.
bool Hearing::TakeIncarnation(Peer& peer) {
  const std::uint64_t incarnation = core_.in.incarnation;
  if (incarnation == peer.incarnation) return true;
  if (incarnation != peer.welcome_incarnation) {
    if (incarnation > peer.incarnation) {
      ++core_.counts.implausible;
      members_.Hasten(*peer.link);
    } else {
      CountDuplicate(peer);
    }
    return false;
  }
  CountLost(peer, peer.heard->GiveUp());
  const Audit::Lost unseen = peer.audit.End(peer.welcome_told, peer.heard->next());
  peer.link->status.missed += unseen.frames, core_.counts.missed += unseen.frames;
  CountLost(peer, unseen.frames, unseen.hits);
  peer.Follow(incarnation, 1);
  peer.clock = {};
  return true;
}

// Whether a ceiling leaves the message that has come for later: it counts as missing then, and is asked for again. A
// frame is taken while anything is left, and owes what it has beyond that.
bool Hearing::AboveCeiling(Peer& peer, Instant now) {
  const Entries& entries = core_.in.entries;
  if (entries.empty()) return false;
  const std::uint64_t hits = HitsOf(entries);
  Peer::Room& room = RoomOf(peer, core_.ceilings);
  CutCounts& cut = peer.link->status.cut;
  const bool above_entries = room.entries.Left(now) <= 0, above_hits = room.hits.Left(now) <= 0;
  if (above_entries) cut.entries += entries.size();
  if (above_hits) cut.hits += hits;
  if (above_entries || above_hits) {
    ++core_.counts.cut;
    room.above = true;
    return true;
  }
  room.entries.Spend(static_cast<double>(entries.size()));
  room.hits.Spend(static_cast<double>(hits));
  return false;
}

// A report that was cut by another list of owners is not counted, or hits would count for tags that others own. Hosts
// tell each other which list is in force.
bool Hearing::IsOfOurOwners(Peer& peer, Instant now) {
  if (core_.in.owners == core_.epoch()) return true;
  ++core_.counts.other_owners;
  if (peer.lists.Take(now)) SayOwners(core_, peer.link->status.link, 0, now);
  return false;
}

void Hearing::Take(Peer& peer, std::size_t bytes, Instant now) {
  Message& in = core_.in;
  ExchangeCounts& counts = core_.counts;
  if (core_.to_limiter.full(peer.number)) {
    ++counts.overflow;
    return;
  }
  if (!IsOfOurOwners(peer, now) || !TakeIncarnation(peer)) return;
  if (peer.heard_epoch != in.owners) {    // a stream that begins
    peer.heard_epoch = in.owners;
    const bool welcomed = peer.welcome_epoch == in.owners && peer.welcome_incarnation == peer.incarnation;
    if (!welcomed || !GoOnCounting(core_, peer)) peer.Follow(peer.incarnation, 1);
  }
  if (peer.clock.known() && peer.refutes_claim(in.sequence, peer.clock.ToOurs(in.to, now))) {
    ++counts.implausible;
    peer.claim.reset();
    peer.Follow(peer.incarnation, std::min(peer.welcome_sequence + 1, in.sequence));
  }
  if (!peer.heard->Wants(in.sequence)) return CountDuplicate(peer);
  if (AboveCeiling(peer, now)) {
    peer.alive = std::max(peer.alive, now);
    return;
  }
  const bool live = in.sequence >= peer.heard->next();    // as it was published, not sent again
  if (live && peer.claim && peer.claim->incarnation == peer.incarnation) peer.claim.reset();
  const Heard::Change change = peer.heard->Add(in.sequence, now);
  if (change.missed != 0) core_.PassAt(now + Wait(peer));

  if ((live || !peer.clock.known()) && !peer.clock.Add(in.to, now)) ++counts.implausible;
  const Instant to = peer.clock.ToOurs(in.to, now), from = std::min(peer.clock.ToOurs(in.from, now), to);
  peer.SetPeriod(in.period);
  peer.alive = std::max(peer.alive, now);

  PeerStatus& status = peer.link->status;
  peer.link->last_report = now;
  if (live) status.age = now - to, status.parts = in.parts, peer.heard_to = to;
  ++status.reports, ++counts.received;
  counts.received_bytes += bytes;
  status.entries += in.entries.size(), counts.received_entries += in.entries.size();
  status.missed += change.missed, counts.missed += change.missed;
  status.repaired += change.repaired, counts.repaired += change.repaired;
  CountLost(peer, change.lost);
  peer.audit.Heard(in.sequence, HitsOf(in.entries));
  GiveToLimiter(peer, from, to);
}

// What a report says, to the limiter.
void Hearing::GiveToLimiter(const Peer& peer, Instant from, Instant to) {
  Message& in = core_.in;
  const bool owned = core_.owners != nullptr;    // every report of a host is answered
  if (in.entries.empty() && !owned && in.hosts == 0) return;
  FromPeers item{FromPeers::Kind::kDebits, from, to, 0, std::move(in.entries), peer.number};
  if (owned) item.counted = peer.heard->counted();
  if (core_.options.counted && core_.OwnsTags() && !(peer.owes_snapshot && peer.levels_count)) {
    item.stream = core_.options.counted->NameOf(peer.name, peer.incarnation, peer.heard_epoch);
  }
  item.hosts = in.hosts;
  item.period = peer.period;
  item.place = peer.PlaceOf(in.sequence);
  core_.to_limiter.Push(std::move(item));
}

void Hearing::CountDuplicate(Peer& peer) {
  ++peer.link->status.duplicates, ++core_.counts.duplicates;
}

void Hearing::CountLost(Peer& peer, std::uint64_t frames, std::uint64_t hits) {
  if (frames == 0 && hits == 0) return;
  peer.link->status.lost += frames, core_.counts.lost += frames;
  peer.link->status.lost_hits += hits, core_.counts.lost_hits += hits;
}

void Hearing::OnWelcome(Peer& peer) {
  const Message& in = core_.in;
  if (!peer.heard || peer.incarnation != in.incarnation || peer.heard_epoch != in.owners) return;
  if (!peer.audit.known()) {
    peer.audit.Learn(in.sequence, in.hits);
  } else if (!peer.claim && peer.heard->missing().empty() && peer.heard->next() == in.sequence + 1) {
    CountLost(peer, 0, peer.audit.Check(in.hits));
  }
}

// ---- Repair ----

// How many frames to ask for. Nobody knows how large they are, so it is twice as many as last time, and half as many
// once some came that a ceiling left for later.
std::uint64_t Hearing::AskedNow(Peer& peer, Instant now) {
  Peer::Room& room = RoomOf(peer, core_.ceilings);
  const bool above = std::exchange(room.above, false);
  room.asked_max = std::clamp<std::uint64_t>(above ? room.asked_max / 2 : room.asked_max * 2, 1, kAskedMax);
  return room.entries.Left(now) > 0 && room.hits.Left(now) > 0 ? room.asked_max : 0;
}

Instant Hearing::AskToRepeat(Peer& peer, Instant now) {
  if (!peer.heard || peer.heard->missing().empty()) return ExchangeCore::kNever;
  const Duration wait = Wait(peer);
  const Instant due = std::max(peer.heard->missing().front().since + wait, peer.next_ask);
  if (due > now) return due;
  peer.next_ask = now + wait;
  std::uint64_t room = AskedNow(peer, now);
  if (releasing() || core_.to_limiter.full(peer.number) || room == 0) return peer.next_ask;    // none for the answers
  Message& m = core_.Begin(MessageKind::kRepeat, now);
  m.incarnation = peer.incarnation;
  for (const auto& range : peer.heard->missing()) {
    if (room == 0 || m.ranges.size() == kRangesMax || range.since + wait > now) break;
    const std::uint64_t last = std::min(range.last, range.first + (room - 1));
    m.ranges.push_back({range.first, last});
    room -= last - range.first + 1;
  }
  core_.transport.Ask(peer.link->status.link, core_.Encoded());
  return peer.next_ask;
}

// What another life of it published is gone with that life; an answer out of an earlier life says nothing.
void Hearing::OnGone(Peer& peer, Instant now) {
  const Message& in = core_.in;
  if (!peer.heard || in.incarnation < peer.incarnation) return;
  const std::uint64_t lost =
      in.incarnation == peer.incarnation ? peer.heard->GiveUpBelow(in.ring_low) : peer.heard->GiveUp();
  CountLost(peer, lost);
  if (lost == 0 || joining_.joining()) return;
  peer.OweSnapshot(now);
  core_.PassSoon();
}

}    // namespace dthrottle
