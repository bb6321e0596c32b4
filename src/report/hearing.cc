#include "report/hearing.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNever = ExchangeCore::kNever;
constexpr std::uint64_t kAskedMax = 256;    // sequences in one request to repeat
constexpr int kCeilingSeconds = 10;         // over which the entries of a peer are averaged

Duration Wait(const Peer& peer) {
  return std::min<Duration>(peer.period, 1s) / 2;
}

}    // namespace

void Hearing::OnReport(Peer& peer, std::string_view frame, Instant now) {
  const Message& in = core_.in;
  if (in.sequence == 0 || in.sequence == std::numeric_limits<std::uint64_t>::max()) {
    ++core_.counts.junk;
  } else if (joining_.joining() || !held_.empty()) {
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
  peer.Follow(incarnation, 1);
  peer.clock = {};
  return true;
}

void Hearing::Take(Peer& peer, std::size_t bytes, Instant now) {
  Message& in = core_.in;
  ExchangeCounts& counts = core_.counts;
  if (core_.to_limiter.full(peer.number)) {
    ++counts.overflow;
    return;
  }
  if (!TakeIncarnation(peer)) return;
  if (peer.clock.known() && peer.refutes_claim(in.sequence, peer.clock.ToOurs(in.to, now))) {
    ++counts.implausible;
    peer.claim.reset();
    peer.Follow(peer.incarnation, std::min(peer.welcome_sequence + 1, in.sequence));
  }
  const bool live = in.sequence >= peer.heard->next();    // as it was published, not sent again
  if (live && peer.claim && peer.claim->incarnation == peer.incarnation) peer.claim.reset();
  const Heard::Change change = peer.heard->Note(in.sequence, now);
  if (!change.fresh) return CountDuplicate(peer);
  if (change.missed != 0) core_.PassAt(now + Wait(peer));

  if ((live || !peer.clock.known()) && !peer.clock.Note(in.to, now)) ++counts.implausible;
  const Instant to = peer.clock.ToOurs(in.to, now), from = std::min(peer.clock.ToOurs(in.from, now), to);
  peer.SetPeriod(in.period);
  peer.alive = std::max(peer.alive, now);

  PeerStatus& status = peer.link->status;
  peer.link->last_report = now;
  if (live) status.age = now - to;
  ++status.reports, ++counts.received;
  counts.received_bytes += bytes;
  status.entries += in.entries.size(), counts.received_entries += in.entries.size();
  status.missed += change.missed, counts.missed += change.missed;
  status.repaired += change.repaired, counts.repaired += change.repaired;
  CountLost(peer, change.lost);
  if (in.entries.empty()) return;
  if (!peer.entries) {
    const auto most = static_cast<double>(core_.options.entries_max);
    peer.entries.emplace(most, most * kCeilingSeconds);
  }
  if (!peer.entries->Take(now, static_cast<double>(in.entries.size()))) {
    status.cut += in.entries.size(), counts.cut += in.entries.size();
    return;
  }
  core_.to_limiter.Push({FromPeers::Kind::kDebits, from, to, 0, std::move(in.entries), peer.number});
}

void Hearing::CountDuplicate(Peer& peer) {
  ++peer.link->status.duplicates, ++core_.counts.duplicates;
}

void Hearing::CountLost(Peer& peer, std::uint64_t lost) {
  peer.link->status.lost += lost, core_.counts.lost += lost;
}

// ---- Repair ----

Instant Hearing::AskToRepeat(Peer& peer, Instant now) {
  if (!peer.heard || peer.heard->missing().empty()) return kNever;
  const Duration wait = Wait(peer);
  const Instant due = std::max(peer.heard->missing().front().since + wait, peer.next_ask);
  if (due > now) return due;
  peer.next_ask = now + wait;
  if (releasing() || core_.to_limiter.full(peer.number)) return peer.next_ask;    // no room for the answers
  Message& m = core_.Begin(MessageKind::kRepeat, now);
  m.incarnation = peer.incarnation;
  std::uint64_t room = kAskedMax;
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
void Hearing::OnGone(Peer& peer) {
  const Message& in = core_.in;
  if (!peer.heard || in.incarnation < peer.incarnation) return;
  const std::uint64_t lost =
      in.incarnation == peer.incarnation ? peer.heard->GiveUpBelow(in.ring_low) : peer.heard->GiveUp();
  CountLost(peer, lost);
  if (lost == 0 || joining_.joining()) return;
  peer.owes_snapshot = true;
  core_.PassSoon();
}

}    // namespace dthrottle
