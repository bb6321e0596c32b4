#include "report/exchange.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "report/clock_offset.h"
#include "report/frame_ring.h"
#include "report/heard.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPassEvery = 50ms;    // least time between two looks at all links
constexpr Duration kHelloEvery = 1s;     // to a peer that is not heard
constexpr Duration kHelloHastened = 200ms;
constexpr Duration kHelloAgain = 30s;    // to one that is, or that refuses
constexpr Duration kBackloggedTick = 1ms;
constexpr Duration kBelievedPeriodMin = 10ms, kBelievedPeriodMax = 1h;    // believed of a peer
constexpr int kSilentPeriods = 3;
constexpr std::uint64_t kAskedMax = 256;    // sequences in one request to repeat
constexpr std::size_t kRepeatedMax = 64;    // frames in answer to one
constexpr std::size_t kPendingMax = 256;    // items that wait for room in the limiter's ring
constexpr int kItemsPerTick = 64;           // of the limiter, before the wire is looked at again
constexpr std::size_t kPositionsBytesMax = 48 * 1024;
constexpr std::size_t kUnknownMax = 64;       // names whose frames are not counted as strangers' yet
constexpr Duration kIntroductionMax = 10s;    // and for how long

constexpr Duration kJoinMin = 10s;          // or two periods: how long a snapshot may take to begin with
constexpr int kJoinArrivingMax = 6;         // times that, while parts arrive
constexpr Duration kBetterDonor = 500ms;    // wait so long for one that has published something
constexpr Duration kDonorPatience = 2s;     // between two signs of life of a snapshot
constexpr Duration kDonorBusy = 250ms;      // before the next is asked
constexpr int kJoinFailuresMax = 3;
constexpr Duration kLossSnapshotEvery = 1min;
constexpr Duration kRefusedSnapshot = 5s;    // before it is asked for again, other than to join
constexpr Duration kLimiterPatience = 10s;

constexpr Instant kNever = Instant::max();

// How often somebody may ask for something.
class Allowance {
 public:
  Allowance(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}

  bool Take(Instant now) {
    left_ = std::min(burst_, left_ + rate_ * Seconds(std::max(now - at_, Duration(0))));
    at_ = now;
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  double rate_, burst_;    // per second; at once
  double left_;
  Instant at_{};
};

struct Peer;

struct Link {
  PeerStatus status;        // kept up to date but for what depends on the time, and on the peer
  Peer* peer = nullptr;     // set exactly when welcomed
  bool awaiting = false;    // a hello has not been answered
  Instant hello_sent{};
  Duration jitter{};             // of the next hello
  std::uint64_t sequence = 0;    // published when it welcomed us
  Instant last_report{};
};

// A host by its name. Outlives its link, so that a new address of it is not a new host; also holds what a snapshot says
// of hosts that no link leads to as yet.
struct Peer {
  std::string name;
  std::uint32_t number = 0;    // no other peer has it now
  Link* link = nullptr;
  Duration period = kBelievedPeriodMin;
  ClockOffset clock;

  std::uint64_t incarnation = 0;
  std::optional<Heard> heard;               // in that incarnation; none: not known where to start
  std::uint64_t renounced = 0;              // an incarnation that was replaced by a smaller one
  std::uint64_t welcome_incarnation = 0;    // of its latest welcome; 0: none
  std::uint64_t welcome_sequence = 0;       // published when it said so
  bool has_all = false;                     // of that, still

  Instant alive{};       // when a report or the first welcome came
  Instant next_ask{};    // to repeat

  bool owes_snapshot = false;    // what it published was lost
  Instant next_snapshot{};

  Allowance repeats{4, 16}, snapshots{0.1, 3};    // of its requests. A snapshot may fail twice at once

  Instant silent_at() const { return alive + kSilentPeriods * period; }
};

struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

}    // namespace

struct Exchange::State {
  Options options;
  ToPeersRing& from_limiter;
  FromPeersRing& to_limiter;
  Transport& transport;
  Prng prng;
  ExchangeCounts counts;

  Codec codec;
  Message in, out;    // kept for their memory
  std::string encoded;

  FrameRing ring;
  std::optional<ToPeers> hits;    // the latest of the period, which may turn out to be its last

  std::map<LinkId, Link> links;
  std::unordered_map<std::string, Peer, NameHash, std::equal_to<>> peers;
  std::size_t unlinked = 0;                    // of the peers
  std::optional<std::uint32_t> free_number;    // of one that was forgotten, for the next
  // Who may turn out to be one of ours when a hello is answered: frames by the sender's name.
  struct Unknown {
    Instant since;
    std::uint64_t frames = 0;
  };
  std::map<std::string, Unknown, std::less<>> unknown;
  std::deque<FromPeers> pending;
  Instant last_pass{}, next_pass{};

  // Joining: from the first link until a snapshot has come or will not come. Reports are held back meanwhile.
  bool joining = false, joined = false;
  Instant join_began{}, next_donor{};
  int join_failures = 0;
  const Instant born;
  bool told_joined = false;
  bool part_merged = false;    // of a snapshot, complete or not
  bool behind = false;         // began without what a peer had published before, and no snapshot has made up for it
  std::optional<LinkId> failed_donor;
  struct HeldFrame {
    std::string bytes;
    Instant arrival;
    bool live;
  };
  std::deque<HeldFrame> held;
  std::size_t held_bytes = 0;

  struct Taking {
    LinkId donor;
    std::uint64_t id;
    Instant deadline;
    Heard parts{1};
    std::optional<std::uint64_t> count{};    // of parts; known when its end has come
    std::vector<Position> positions{};
  };
  std::optional<Taking> taking;
  // Parts are kept until the snapshot is complete: those of one that fails would be charged again with the next one,
  // whose positions are others.
  struct HeldPart {
    std::string bytes;
    Instant at;    // by our clock
  };
  std::deque<HeldPart> parts;
  std::size_t parts_bytes = 0;
  bool parts_overflow = false;                     // too many to keep: merged as they come
  std::optional<std::vector<Position>> arrived;    // of a complete snapshot whose parts are being merged

  struct Giving {
    Route route;
    std::uint64_t id;        // of who asked
    std::uint64_t number;    // between us and the limiter
    Instant deadline;
    std::vector<Position> positions;
    std::uint64_t parts = 0;
  };
  std::optional<Giving> giving;
  std::uint64_t snapshots_begun = 0;

  State(Options o, ToPeersRing& from, FromPeersRing& to, Transport& t, Prng p, Instant now)
      : options(std::move(o)),
        from_limiter(from),
        to_limiter(to),
        transport(t),
        prng(p),
        ring(options.ring_bytes),
        next_pass(now),
        born(now) {}

  // ---- Frames ----

  Message& Begin(MessageKind kind, Instant now) {
    out.Clear();
    out.kind = kind;
    out.sender = options.name;
    out.incarnation = options.incarnation;
    out.to = now;
    return out;
  }

  Frame Encoded() {
    codec.Encode(out, encoded);
    return std::make_shared<const std::string>(encoded);
  }

  void Refuse(const Route& route, const char* why, std::uint64_t snapshot, Instant now) {
    Message& m = Begin(MessageKind::kRefusal, now);
    m.text = why;
    m.snapshot = snapshot;
    transport.Answer(route, Encoded());
  }

  // Into `in`, or counted.
  DecodeFault Decode(std::string_view frame) {
    const DecodeFault fault = codec.Decode(frame, in);
    if (fault == DecodeFault::kVersion) {
      ++counts.other_version;
    } else if (fault != DecodeFault::kNone) {
      ++counts.junk;
    }
    return fault;
  }

  // ---- Strangers ----

  // As long as a hello waits for its first answer nobody knows what the host there is called.
  bool introducing() const {
    return std::any_of(links.begin(), links.end(),
                       [](const auto& link) { return link.second.status.state == PeerState::kConnecting; });
  }

  // `in` came from nobody we know.
  void CountUnknown(Instant now) {
    const auto known = unknown.find(in.sender);
    if (!introducing() || (known == unknown.end() && unknown.size() >= kUnknownMax)) {
      ++counts.strangers;
      return;
    }
    Unknown& sender = known != unknown.end() ? known->second : unknown[in.sender] = {now};
    ++sender.frames;
    next_pass = std::min(next_pass, sender.since + kIntroductionMax);
  }

  // Those that have had time enough are strangers. Returns when to look again.
  Instant CountStrangers(Instant now) {
    const Instant late = introducing() ? now - kIntroductionMax : kNever;
    Instant next = kNever;
    std::erase_if(unknown, [&](const auto& one) {
      const bool over = one.second.since <= late;
      if (over) counts.strangers += one.second.frames;
      if (!over) next = std::min(next, one.second.since + kIntroductionMax);
      return over;
    });
    return next;
  }

  // ---- What this host publishes ----

  void Publish(ToPeers& item, bool last) {
    Message& m = Begin(MessageKind::kReport, item.to);
    m.sequence = ring.next();
    m.ring_low = ring.low();
    m.from = item.from;
    m.period = options.period;
    m.last = last;
    m.entries = std::move(item.entries);
    counts.published_entries += m.entries.size();
    Frame frame = Encoded();
    ++counts.published;
    counts.published_bytes += frame->size();
    ring.Append(frame);
    transport.Publish(frame);
  }

  void PublishHits(bool last) {
    Publish(*hits, last);
    hits.reset();
  }

  void FromLimiter(ToPeers& item, Instant now) {
    switch (item.kind) {
      case ToPeers::Kind::kNone:
        return;
      case ToPeers::Kind::kHits:
        if (hits) PublishHits(false);
        hits = std::move(item);
        return;
      case ToPeers::Kind::kUrgent:
        ++counts.urgent_frames;
        counts.urgent_entries += item.entries.size();
        return Publish(item, false);
      case ToPeers::Kind::kPeriodEnd:
        if (!hits) {
          hits = std::move(item);
          hits->from = hits->to;
          hits->entries.Clear();
        }
        return PublishHits(true);
      case ToPeers::Kind::kSnapshotBegin:
      case ToPeers::Kind::kSnapshotPart:
      case ToPeers::Kind::kSnapshotEnd:
        return GiveSnapshot(item, now);
    }
  }

  // ---- What goes to the limiter ----

  void Push(FromPeers&& item) {
    if (!pending.empty() || !to_limiter.TryPush(std::move(item))) pending.push_back(std::move(item));
  }

  void MovePending() {
    while (!pending.empty() && to_limiter.TryPush(std::move(pending.front()))) pending.pop_front();
  }

  bool merging() const { return (arrived || parts_overflow) && !parts.empty(); }
  bool backlogged() const { return !pending.empty() || merging() || (!joining && !held.empty()); }

  // ---- Hosts ----

  // The host of that name if a link leads to it.
  Peer* Linked(std::string_view name) {
    const auto it = peers.find(name);
    return it == peers.end() || it->second.link == nullptr ? nullptr : &it->second;
  }

  Peer& FindOrAdd(const std::string& name) {
    if (const auto it = peers.find(name); it != peers.end()) return it->second;
    if (unlinked >= kPositionsMax) {
      const auto gone =
          std::find_if(peers.begin(), peers.end(), [](const auto& p) { return p.second.link == nullptr; });
      free_number = gone->second.number;
      peers.erase(gone);
      --unlinked;
    }
    Peer& peer = peers[name];
    peer.name = name;
    peer.number = free_number.value_or(static_cast<std::uint32_t>(peers.size() - 1));
    free_number.reset();
    ++unlinked;
    return peer;
  }

  void Bind(Link& link, Peer& peer, Instant now) {
    if (link.peer == &peer) return;
    Unbind(link);
    link.peer = &peer;
    peer.link = &link;
    --unlinked;
    peer.alive = now;
  }

  void Unbind(Link& link) {
    if (link.peer == nullptr) return;
    link.peer->link = nullptr;
    link.peer = nullptr;
    ++unlinked;
    // Another address of the same host may take its place.
    for (auto& [id, other] : links) {
      if (&other != &link && other.status.name == link.status.name) other.hello_sent -= kHelloAgain;
    }
    next_pass = last_pass;
  }

  void RefuseLink(Link& link, std::string why) {
    Unbind(link);
    link.status.state = PeerState::kRefused;
    link.status.reason = std::move(why);
  }

  Instant HelloDue(const Link& link) const {
    if (link.status.state == PeerState::kSelf) return kNever;
    const Instant soon = link.hello_sent + kHelloEvery + link.jitter, late = soon + (kHelloAgain - kHelloEvery);
    if (link.peer != nullptr) return std::min(late, std::max(soon, link.peer->silent_at()));
    return link.status.state == PeerState::kRefused ? late : soon;
  }

  void SayHello(Link& link, Instant now) {
    Message& m = Begin(MessageKind::kHello, now);
    m.sequence = ring.next() - 1;
    m.period = options.period;
    m.text = options.version;
    link.awaiting = true;
    link.hello_sent = now;
    link.jitter = Duration(static_cast<Duration::rep>(prng.Below(kHelloEvery.count() / 4)));
    transport.Ask(link.status.link, Encoded());
  }

  void OnHello(const Route& route, Instant now) {
    if (in.sender == options.name && in.incarnation != options.incarnation) {
      return Refuse(route, "your name is also mine", 0, now);
    }
    Message& m = Begin(MessageKind::kWelcome, now);
    m.sequence = ring.next() - 1;
    m.ring_low = ring.low();
    m.period = options.period;
    m.text = options.version;
    transport.Answer(route, Encoded());
    if (in.sender == options.name || Linked(in.sender) != nullptr) return;
    // Perhaps one of ours that has just come up, and will soon want what we give to peers only.
    for (auto& [id, link] : links) {
      if (link.status.state == PeerState::kConnecting) link.jitter = kHelloHastened - kHelloEvery;
    }
    next_pass = last_pass;
  }

  void OnWelcome(Link& link, Instant now) {
    if (!link.awaiting) return;    // nobody asked, or it came twice
    link.awaiting = false;
    link.status.version = in.text;
    link.sequence = in.sequence;
    if (in.sender == options.name) {
      link.status.name = in.sender;
      if (in.incarnation != options.incarnation) return RefuseLink(link, "its name is also ours");
      Unbind(link);
      link.status.state = PeerState::kSelf;
      next_pass = last_pass;
      return;
    }
    if (Peer* peer = Linked(in.sender); peer != nullptr && peer->link != &link) {
      RefuseLink(link, "the same host as " + peer->link->status.address);
      link.status.name = in.sender;
      return;
    }
    Peer& peer = FindOrAdd(in.sender);
    Bind(link, peer, now);
    unknown.erase(in.sender);
    link.status.name = in.sender;
    link.status.state = PeerState::kUp;
    link.status.reason.clear();
    SetPeriod(peer);
    if (peer.welcome_incarnation != in.incarnation) {
      peer.welcome_incarnation = in.incarnation;
      peer.welcome_sequence = in.sequence;
      peer.has_all = in.ring_low == 1;
    }
    if (!peer.heard || peer.incarnation == in.incarnation) peer.clock.Note(in.to, now);
    if (!joining) Start(peer);
    next_pass = last_pass;
  }

  void SetPeriod(Peer& peer) { peer.period = std::clamp(in.period, kBelievedPeriodMin, kBelievedPeriodMax); }

  // A table that begins empty wants all that the peer ever published, if the peer still has it. One that was kept over
  // a restart, or that has part of a snapshot, has most of it and would debit it twice.
  void Start(Peer& peer) {
    if (peer.heard) return;
    const bool all = options.fresh_table && !part_merged && peer.has_all;
    const bool unlikely = peer.welcome_sequence == std::numeric_limits<std::uint64_t>::max();
    peer.incarnation = peer.welcome_incarnation;
    peer.heard.emplace(all || unlikely ? 1 : peer.welcome_sequence + 1);
    behind |= !all && peer.welcome_sequence > 0 && counts.snapshots_taken == 0;
  }

  // ---- Reports ----

  // `live`: as it was published, not sent again.
  void OnReport(std::string_view frame, bool live, Instant now) {
    if (in.sender == options.name) {
      counts.strangers += in.incarnation != options.incarnation;
      return;
    }
    Peer* peer = Linked(in.sender);
    if (peer == nullptr) {
      CountUnknown(now);
    } else if (in.sequence == 0 || in.sequence == std::numeric_limits<std::uint64_t>::max() || in.incarnation == 0) {
      ++counts.junk;
    } else if (joining || !held.empty()) {
      peer->alive = now;
      Hold(frame, live, now);
    } else {
      TakeReport(*peer, frame.size(), live, now);
    }
  }

  void Hold(std::string_view frame, bool live, Instant now) {
    if (held_bytes + frame.size() > options.held_bytes) {
      if (!joining) {
        ++counts.overflow;
        return;
      }
      StopJoining();    // and then keep at least this one
    }
    held_bytes += frame.size();
    held.push_back({std::string(frame), now, live});
  }

  void ReleaseHeld() {
    while (!joining && !held.empty() && pending.empty()) {
      const HeldFrame frame = std::move(held.front());
      held.pop_front();
      held_bytes -= frame.bytes.size();
      if (codec.Decode(frame.bytes, in) != DecodeFault::kNone) continue;
      if (Peer* peer = Linked(in.sender); peer != nullptr) {
        TakeReport(*peer, frame.bytes.size(), frame.live, frame.arrival);
      }
    }
  }

  void TakeReport(Peer& peer, std::size_t bytes, bool live, Instant now) {
    if (pending.size() >= kPendingMax) {
      ++counts.overflow;
      return;
    }
    if (in.incarnation != peer.incarnation) {
      // A smaller one is a frame that was long under way, unless the host itself says that its clock went back.
      const bool went_back = in.incarnation == peer.welcome_incarnation && now >= peer.silent_at();
      if (in.incarnation == peer.renounced) return CountDuplicate(peer);
      if (in.incarnation < peer.incarnation && !went_back) return CountDuplicate(peer);
      if (in.incarnation < peer.incarnation) peer.renounced = peer.incarnation;
      CountLost(peer, peer.heard->GiveUp());
      peer.heard.emplace(1);
      peer.incarnation = in.incarnation;
      peer.clock = {};
    }
    const Heard::Change change = peer.heard->Note(in.sequence, now);
    if (!change.fresh) return CountDuplicate(peer);
    if (change.missed != 0) next_pass = std::min(next_pass, now + Wait(peer));

    if (live || !peer.clock.known()) peer.clock.Note(in.to, now);
    const Instant to = peer.clock.ToOurs(in.to, now), from = std::min(peer.clock.ToOurs(in.from, now), to);
    SetPeriod(peer);
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
    if (!in.entries.empty()) Push({FromPeers::Kind::kDebits, from, to, 0, std::move(in.entries), peer.number});
  }

  void CountDuplicate(Peer& peer) { ++peer.link->status.duplicates, ++counts.duplicates; }
  void CountLost(Peer& peer, std::uint64_t lost) { peer.link->status.lost += lost, counts.lost += lost; }

  // ---- Repair ----

  static Duration Wait(const Peer& peer) { return std::min<Duration>(peer.period, 1s) / 2; }

  // Asks for what is missing if it is time; returns when it is next.
  Instant AskToRepeat(Peer& peer, Instant now) {
    if (!peer.heard || peer.heard->missing().empty()) return kNever;
    const Duration wait = Wait(peer);
    const Instant due = std::max(peer.heard->missing().front().since + wait, peer.next_ask);
    if (due > now) return due;
    peer.next_ask = now + wait;
    if (backlogged()) return peer.next_ask;    // no room for the answers
    Message& m = Begin(MessageKind::kRepeat, now);
    m.incarnation = peer.incarnation;
    std::uint64_t room = kAskedMax;
    for (const auto& range : peer.heard->missing()) {
      if (room == 0 || m.ranges.size() == kRangesMax || range.since + wait > now) break;
      const std::uint64_t last = std::min(range.last, range.first + (room - 1));
      m.ranges.push_back({range.first, last});
      room -= last - range.first + 1;
    }
    transport.Ask(peer.link->status.link, Encoded());
    return peer.next_ask;
  }

  void OnRepeat(const Route& route, Peer& peer, Instant now) {
    if (!peer.repeats.Take(now)) {
      ++counts.excess;
      return;
    }
    const bool ours = in.incarnation == options.incarnation;
    const std::uint64_t low = ring.low();
    std::uint64_t gone = 0;
    std::size_t room = kRepeatedMax;
    for (std::size_t i = 0; ours && i < std::min(in.ranges.size(), kRangesMax); ++i) {
      const auto [first, last] = in.ranges[i];
      if (first > last) continue;
      if (first < low) gone += std::min(last, low - 1) - first + 1;
      for (std::uint64_t s = std::max(first, low); s <= last && s < ring.next() && room > 0; ++s, --room) {
        transport.Answer(route, ring.at(s));
        ++counts.repeated;
      }
    }
    counts.gone += gone;
    if (ours && gone == 0) return;
    Begin(MessageKind::kGone, now).ring_low = low;
    transport.Answer(route, Encoded());
  }

  void OnGone(Peer& peer) {
    // What another life of it published is gone with that life; an answer out of an earlier life says nothing.
    if (!peer.heard || in.incarnation < peer.incarnation) return;
    const std::uint64_t lost =
        in.incarnation == peer.incarnation ? peer.heard->GiveUpBelow(in.ring_low) : peer.heard->GiveUp();
    CountLost(peer, lost);
    if (lost == 0 || joining) return;
    peer.owes_snapshot = true;
    next_pass = last_pass;
  }

  // ---- Taking a snapshot ----

  void AskForSnapshot(Link& donor, Instant now) {
    taking.emplace(Taking{donor.status.link, prng.Next() | 1, now + kDonorPatience});
    donor.peer->owes_snapshot = false;
    if (!joining) donor.peer->next_snapshot = now + kLossSnapshotEvery;
    Begin(MessageKind::kSnapshotWanted, now).snapshot = taking->id;
    transport.Ask(donor.status.link, Encoded());
  }

  void SnapshotFailed(Instant next) {
    if (joining) {
      failed_donor = taking->donor;
      next_donor = next;
    } else if (const auto it = links.find(taking->donor); it != links.end() && it->second.peer != nullptr) {
      it->second.peer->owes_snapshot = true;
    }
    taking.reset();
    ForgetParts();
    next_pass = last_pass;
  }

  Duration JoinMax() const { return std::max<Duration>(kJoinMin, 2 * options.period); }

  void TellJoined() {
    if (!std::exchange(told_joined, true)) Push({FromPeers::Kind::kJoined, {}, {}, 0, {}});
  }

  // Returns when to look again.
  Instant Join(Instant now) {
    if (taking && now >= taking->deadline) {
      if (parts.empty()) ++join_failures;
      SnapshotFailed(now);
    }
    if (!joining) {
      const Instant alone_until = told_joined ? kNever : born + JoinMax();    // no link yet
      if (now >= alone_until) TellJoined();
      return taking ? taking->deadline : told_joined ? kNever : alone_until;
    }
    if (arrived) return kNever;    // MergeParts goes on
    const bool arriving = taking && !parts.empty();
    const Instant end = join_began + (arriving ? kJoinArrivingMax : 1) * JoinMax();
    const bool alone = std::all_of(links.begin(), links.end(),
                                   [](const auto& link) { return link.second.status.state == PeerState::kSelf; });
    // Half of a snapshot is worse than none: what is held back may be in it already.
    if (alone || now >= end || (join_failures >= kJoinFailuresMax && !part_merged)) {
      StopJoining();
      joined = !alone;    // else the first other host that is added is a reason to join
      return kNever;
    }
    if (taking) return std::min(end, taking->deadline);
    if (now < next_donor) return std::min(end, next_donor);
    // One that has published something knows more than one that has just begun too.
    std::vector<Link*> best;
    bool best_published = false;
    for (auto& [id, link] : links) {
      if (link.peer == nullptr) continue;
      const bool published = link.sequence > 0;
      if (published && !best_published) best.clear();
      if (published || !best_published) best.push_back(&link);
      best_published |= published;
    }
    if (!best_published && now < join_began + kBetterDonor) return join_began + kBetterDonor;
    if (best.size() > 1) std::erase_if(best, [&](Link* link) { return link->status.link == failed_donor; });
    if (best.empty()) return end;    // a welcome brings us here again
    AskForSnapshot(*best[prng.Below(best.size())], now);
    return std::min(end, taking->deadline);
  }

  // What was held is released by the next Tick, because it may be much.
  void StopJoining() {
    joining = false;
    joined = true;
    TellJoined();
    for (auto& [id, link] : links) {
      if (link.peer != nullptr) Start(*link.peer);
    }
  }

  bool Taken(LinkId link) const { return taking && taking->donor == link && taking->id == in.snapshot; }

  void OnSnapshotPart(LinkId link, Peer& donor, std::string_view frame, Instant now) {
    if (!Taken(link)) return;
    if (in.sequence == 0 || in.sequence == std::numeric_limits<std::uint64_t>::max()) {
      ++counts.junk;
    } else if (taking->parts.Note(in.sequence, now).fresh) {
      taking->deadline = now + kDonorPatience;
      parts.push_back({std::string(frame), donor.clock.ToOurs(in.to, now)});
      parts_bytes += frame.size();
      parts_overflow |= parts_bytes > options.held_bytes;
      FinishSnapshot();
      MergeParts();
    }
  }

  void OnSnapshotEnd(LinkId link, Instant now) {
    if (!Taken(link) || taking->count) return;
    taking->count = in.sequence;
    taking->positions = std::move(in.positions);
    taking->deadline = now + kDonorPatience;    // for parts that the end has overtaken
    FinishSnapshot();
    MergeParts();
  }

  void FinishSnapshot() {
    if (!taking->count || !taking->parts.missing().empty() || taking->parts.next() - 1 != *taking->count) return;
    arrived = std::move(taking->positions);
    taking.reset();
    next_pass = last_pass;
  }

  void ForgetParts() {
    parts.clear();
    parts_bytes = 0;
    parts_overflow = false;
  }

  // As far as the limiter has room; the next Tick goes on.
  void MergeParts() {
    while (merging() && pending.empty()) {
      const HeldPart part = std::move(parts.front());
      parts.pop_front();
      if (codec.Decode(part.bytes, in) != DecodeFault::kNone) continue;
      Push({FromPeers::Kind::kBuckets, part.at, part.at, 0, std::move(in.entries)});
      part_merged = true;
    }
    if (!arrived || !parts.empty()) return;
    const std::vector<Position> positions = std::move(*arrived);
    arrived.reset();
    ForgetParts();
    ++counts.snapshots_taken;
    behind = false;
    if (!joining) return;    // reports were taken meanwhile, as they came
    for (const Position& p : positions) {
      if (p.sender == options.name || p.incarnation == 0) continue;
      Peer& peer = FindOrAdd(p.sender);
      if (peer.heard) continue;
      peer.incarnation = p.incarnation;
      if (peer.welcome_incarnation != p.incarnation) peer.clock = {};
      peer.heard.emplace(std::max<std::uint64_t>(p.next, 1));
    }
    StopJoining();
  }

  void OnRefusal(LinkId id, Link& link, Instant now) {
    if (in.snapshot != 0) {
      if (!Taken(id)) return;
      SnapshotFailed(now + kDonorBusy);
      if (link.peer != nullptr) link.peer->next_snapshot = now + kRefusedSnapshot;
    } else if (link.awaiting) {    // still, because the refusal may be of something else
      RefuseLink(link, in.text);
    }
  }

  // ---- Giving a snapshot ----

  void OnSnapshotWanted(const Route& route, Peer& peer, Instant now) {
    if (in.snapshot == 0) {
      ++counts.junk;
      return;
    }
    if (giving) return Refuse(route, "busy with another snapshot", in.snapshot, now);
    // A position cannot say that something before it is missing; soon it will have come.
    for (const auto& [name, other] : peers) {
      const bool repairing = other.link != nullptr && now < other.silent_at() && other.heard;
      if (repairing && !other.heard->missing().empty()) {
        return Refuse(route, "busy with repairs", in.snapshot, now);
      }
    }
    if (!peer.snapshots.Take(now)) {
      ++counts.excess;
      return Refuse(route, "too often", in.snapshot, now);
    }
    giving.emplace(Giving{route, in.snapshot, ++snapshots_begun, now + kLimiterPatience, {}});
    next_pass = std::min(next_pass, giving->deadline);
    // All debits of what has been heard are on their way to the limiter before the marker, and none after.
    std::size_t bytes = 0;
    for (const auto& [name, other] : peers) {
      if (!other.heard) continue;
      bytes += name.size() + 24;
      if (bytes > kPositionsBytesMax || giving->positions.size() + 1 >= kPositionsMax) break;
      giving->positions.push_back({name, other.incarnation, other.heard->next()});
    }
    Push({FromPeers::Kind::kSnapshotWanted, {}, {}, giving->number, {}});
  }

  void GiveSnapshot(ToPeers& item, Instant now) {
    const bool begin = item.kind == ToPeers::Kind::kSnapshotBegin;
    if (begin && hits) PublishHits(false);    // they are in the table
    if (!giving || giving->number != item.snapshot) return;
    giving->deadline = now + kLimiterPatience;
    if (begin) return giving->positions.push_back({options.name, options.incarnation, ring.next()});
    const bool end = item.kind == ToPeers::Kind::kSnapshotEnd;
    Message& m = Begin(end ? MessageKind::kSnapshotEnd : MessageKind::kSnapshot, end ? now : item.to);
    m.snapshot = giving->id;
    m.sequence = end ? giving->parts : ++giving->parts;
    if (end) m.positions = std::move(giving->positions);
    m.entries = std::move(item.entries);
    transport.Answer(giving->route, Encoded());
    if (!end) return;
    ++counts.snapshots_given;
    giving.reset();
  }

  // ---- All that is due ----

  void Pass(Instant now) {
    last_pass = now;
    next_pass = kNever;
    Instant next = kNever;
    for (auto& [id, link] : links) {
      if (HelloDue(link) <= now) SayHello(link, now);
      next = std::min(next, HelloDue(link));
      if (link.peer == nullptr) continue;
      next = std::min(next, AskToRepeat(*link.peer, now));
      const bool wanted = link.peer->owes_snapshot || (behind && now < link.peer->silent_at());
      if (!wanted || joining || taking || arrived) continue;
      if (link.peer->next_snapshot <= now) AskForSnapshot(link, now);
      next = std::min(next, link.peer->next_snapshot);
    }
    if (giving && now >= giving->deadline) giving.reset();
    if (giving) next = std::min(next, giving->deadline);
    next = std::min({next, Join(now), CountStrangers(now)});
    next_pass = std::max(std::min(next, next_pass), now + kPassEvery);
  }
};

Exchange::Exchange(Options options, ToPeersRing& from_limiter, FromPeersRing& to_limiter, Transport& transport,
                   Prng prng, Instant now)
    : state_(std::make_unique<State>(std::move(options), from_limiter, to_limiter, transport, prng, now)) {}
Exchange::~Exchange() = default;

void Exchange::AddLink(LinkId id, std::string address, Instant now) {
  State& s = *state_;
  Link& link = s.links[id];
  link.status.link = id;
  link.status.address = std::move(address);
  if (!s.joined && !s.joining) {
    s.joining = true;
    s.join_began = now;
    s.join_failures = 0;
  }
  s.SayHello(link, now);
  s.next_pass = s.last_pass;
}

void Exchange::RemoveLink(LinkId id, Instant) {
  const auto it = state_->links.find(id);
  if (it == state_->links.end()) return;
  state_->Unbind(it->second);
  state_->links.erase(it);
  state_->next_pass = state_->last_pass;
}

void Exchange::OnPublished(std::string_view frame, Instant now) {
  State& s = *state_;
  if (s.Decode(frame) != DecodeFault::kNone) return;
  if (s.in.kind == MessageKind::kReport) {
    s.OnReport(frame, true, now);
  } else {
    ++s.counts.junk;
  }
}

void Exchange::OnAnswer(LinkId id, std::string_view frame, Instant now) {
  State& s = *state_;
  const auto it = s.links.find(id);
  if (it == s.links.end()) {
    ++s.counts.strangers;
    return;
  }
  Link& link = it->second;
  const DecodeFault fault = s.Decode(frame);
  if (fault == DecodeFault::kVersion) s.RefuseLink(link, "it speaks another version of the protocol");
  if (fault != DecodeFault::kNone) return;
  const MessageKind kind = s.in.kind;
  if (kind == MessageKind::kRefusal) return s.OnRefusal(id, link, now);
  if (s.in.incarnation == 0 || s.in.sender.empty()) {
    ++s.counts.junk;
    return;
  }
  if (kind == MessageKind::kWelcome) return s.OnWelcome(link, now);
  if (link.peer == nullptr) return s.CountUnknown(now);
  if (link.peer->name != s.in.sender) {
    ++s.counts.strangers;
    return;
  }
  switch (kind) {
    case MessageKind::kReport:
      return s.OnReport(frame, false, now);
    case MessageKind::kGone:
      return s.OnGone(*link.peer);
    case MessageKind::kSnapshot:
      return s.OnSnapshotPart(id, *link.peer, frame, now);
    case MessageKind::kSnapshotEnd:
      return s.OnSnapshotEnd(id, now);
    default:
      ++s.counts.junk;
  }
}

void Exchange::OnRequest(const Route& route, std::string_view identity, std::string_view frame, Instant now) {
  State& s = *state_;
  const DecodeFault fault = s.Decode(frame);
  // Who speaks another version sees from any answer of ours that it does.
  if (fault == DecodeFault::kVersion) return s.Refuse(route, "another version of the protocol", 0, now);
  if (fault != DecodeFault::kNone) return;
  const MessageKind kind = s.in.kind;
  if (kind != MessageKind::kHello && kind != MessageKind::kRepeat && kind != MessageKind::kSnapshotWanted) {
    ++s.counts.junk;
    return;
  }
  if (s.options.identities_proven && identity != s.in.sender) {
    ++s.counts.strangers;
    return s.Refuse(route, "your key belongs to another name", s.in.snapshot, now);
  }
  if (kind == MessageKind::kHello) return s.OnHello(route, now);
  Peer* peer = s.Linked(s.in.sender);
  if (peer == nullptr) {
    s.CountUnknown(now);
    // Of a request to repeat nobody could tell the refusal from that of a hello. It will be made again.
    if (kind == MessageKind::kSnapshotWanted) s.Refuse(route, "you are not a peer of mine", s.in.snapshot, now);
    return;
  }
  if (kind == MessageKind::kRepeat) return s.OnRepeat(route, *peer, now);
  s.OnSnapshotWanted(route, *peer, now);
}

bool Exchange::backlogged() const {
  return state_->backlogged();
}

bool Exchange::joining() const {
  return state_->joining;
}

Instant Exchange::Tick(Instant now) {
  State& s = *state_;
  s.MovePending();
  s.MergeParts();
  s.ReleaseHeld();
  ToPeers item;
  int items = 0;
  while (items < kItemsPerTick && s.from_limiter.TryPop(item)) {
    s.FromLimiter(item, now);
    ++items;
  }
  const Instant pass = std::max(s.next_pass, s.last_pass + kPassEvery);
  if (pass <= now) s.Pass(now);
  if (items == kItemsPerTick) return now;
  return s.backlogged() ? now + kBackloggedTick : std::max(s.next_pass, s.last_pass + kPassEvery);
}

std::vector<PeerStatus> Exchange::Peers(Instant now) const {
  std::vector<PeerStatus> all;
  all.reserve(state_->links.size());
  for (const auto& [id, link] : state_->links) {
    PeerStatus& status = all.emplace_back(link.status);
    status.last_heard = status.reports == 0 ? Duration(-1) : now - link.last_report;
    if (link.peer == nullptr) continue;
    status.state = now < link.peer->silent_at() ? PeerState::kUp : PeerState::kSilent;
    status.incarnation = link.peer->incarnation;
    status.sequence = link.peer->heard ? link.peer->heard->next() - 1 : 0;
  }
  return all;
}

ExchangeCounts Exchange::Counts() const {
  ExchangeCounts counts = state_->counts;
  counts.ring_frames = state_->ring.size();
  counts.ring_bytes = state_->ring.bytes();
  return counts;
}

}    // namespace dthrottle
