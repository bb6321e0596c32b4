// Hands what comes to the part that it is for: membership (hello), publishing (own reports), hearing (peers' reports),
// joining (a snapshot taken), giving (a snapshot given).
#include "bus/exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/state.h"
#include "bus/giving.h"
#include "bus/hearing.h"
#include "bus/joining.h"
#include "bus/membership.h"
#include "bus/publishing.h"

namespace dthrottle {
namespace {

constexpr Duration kBackloggedTick = std::chrono::milliseconds(1);
constexpr std::size_t kBacklogMax = 512;    // items of all peers that wait for the limiter
constexpr int kItemsPerTick = 64;           // of the limiter, before the wire is looked at again
constexpr std::uint32_t kLifeVersion = 3;

}    // namespace

struct Exchange::State {
  State(Options o, ToPeersRing& from, FromPeersRing& to, Transport& transport, Prng prng, Instant now)
      : core(std::move(o), to, transport, prng, now), from_limiter(from), joining(core, members, now) {}

  bool waiting() const { return !core.to_limiter.empty() || joining.merging() || hearing.releasing(); }
  bool backlogged() const { return core.to_limiter.size() >= kBacklogMax || joining.merging() || hearing.releasing(); }
  std::uint64_t published() const { return publishing.ring().next() - 1; }

  void FromLimiter(ToPeers& item, Instant now) {
    switch (item.kind) {
      case ToPeers::Kind::kNone:
        return;
      case ToPeers::Kind::kHits:
      case ToPeers::Kind::kUrgent:
      case ToPeers::Kind::kPeriodEnd:
        return publishing.FromLimiter(item, now);
      case ToPeers::Kind::kSnapshotBegin:
      case ToPeers::Kind::kSnapshotPart:
      case ToPeers::Kind::kSnapshotEnd:
        return giving.FromLimiter(item, now);
    }
  }

  // True if there may be more.
  bool MoveItems(Instant now) {
    core.to_limiter.Move();
    joining.Merge(now);
    hearing.Release();
    ToPeers item;
    int items = 0;
    while (items < kItemsPerTick && from_limiter.TryPop(item)) {
      FromLimiter(item, now);
      ++items;
    }
    return items == kItemsPerTick;
  }

  static void Fields(auto& state, auto& self) { state(self.publishing, self.members, self.joining, self.hearing); }

  // The incarnation that a saved life of this host states; none if it is of another host, or of another version.
  static std::optional<std::uint64_t> IncarnationOf(std::string_view life, const std::string& name) {
    StateReader state(life);
    std::uint32_t version = 0;
    std::string whose;
    std::uint64_t incarnation = 0;
    state(version, whose, incarnation);
    if (!state.ok() || version != kLifeVersion || whose != name) return std::nullopt;
    return incarnation;
  }

  std::string Life(Instant now) {
    publishing.Flush(now);
    StateWriter state;
    state(kLifeVersion, core.options.name, core.options.incarnation);
    Fields(state, *this);
    return state.Take();
  }

  bool Resume(std::string_view life) {
    StateReader state(life);
    std::uint32_t version = 0;
    std::string name;
    std::uint64_t incarnation = 0;
    state(version, name, incarnation);
    Fields(state, *this);
    return resumed = state.ok() && state.at_end();
  }

  void Pass(Instant now) {
    core.BeginPass(now);
    Instant next = ExchangeCore::kNever;
    for (const auto& link : members.links()) {
      Instant due = members.HelloDue(*link);
      if (due <= now) {
        members.SayHello(*link, published(), now);
        due = members.HelloDue(*link);
      }
      next = std::min(next, due);
      if (link->peer != nullptr) next = std::min(next, hearing.AskToRepeat(*link->peer, now));
    }
    core.PassAt(std::min({next, joining.Pass(now), giving.Pass(now), members.CountStrangers(now)}));
  }

  ExchangeCore core;
  ToPeersRing& from_limiter;
  Membership members{core};
  Publishing publishing{core};
  Joining joining;
  Hearing hearing{core, members, joining};
  Giving giving{core, members, publishing};
  bool resumed = false;
};

Exchange::Exchange(Options options, ToPeersRing& from_limiter, FromPeersRing& to_limiter, Transport& transport,
                   Prng prng, Instant now) {
  const std::string life = std::exchange(options.life, {});
  const auto make = [&](std::uint64_t incarnation) {
    Options with = options;
    with.incarnation = incarnation;
    state_ = std::make_unique<State>(std::move(with), from_limiter, to_limiter, transport, prng, now);
  };
  if (const auto incarnation = State::IncarnationOf(life, options.name)) {
    make(*incarnation);
    if (state_->Resume(life)) return;
  }
  make(options.incarnation);
}

Exchange::~Exchange() = default;

void Exchange::AddLink(LinkId id, std::string address, Instant now, std::string proven) {
  State& s = *state_;
  Link& link = s.members.Add(id, std::move(address), std::move(proven));
  s.joining.OnLink(now);
  s.members.SayHello(link, s.published(), now);
}

void Exchange::RemoveLink(LinkId id, Instant) {
  state_->members.Remove(id);
}

void Exchange::OnConnected(LinkId id, Instant) {
  Link* const link = state_->members.Find(id);
  if (link == nullptr) return;
  link->awaiting = false;    // an answer to what was said on the connection before may be of a life that is over
  state_->members.Hasten(*link);
}

void Exchange::SetCeilings(const PeerCeilings& ceilings) {
  State& s = *state_;
  s.core.ceilings = ceilings;
  for (const auto& link : s.members.links()) {
    link->frames.reset();
    if (link->peer != nullptr) link->peer->room.reset();
  }
}

void Exchange::OnAnswer(LinkId link, std::string_view frame, Instant now) {
  Hear(link, frame, nullptr, now);
}

void Exchange::OnAnswer(LinkId link, std::string_view frame, const Decoded& decoded, Instant now) {
  Hear(link, frame, &decoded, now);
}

void Exchange::Hear(LinkId id, std::string_view frame, const Decoded* decoded, Instant now) {
  State& s = *state_;
  ExchangeCounts& counts = s.core.counts;
  const Message& in = s.core.in;
  Link* const link = s.members.Find(id);
  if (link == nullptr) return;    // removed meanwhile
  // A snapshot is as many frames as the donor's table needs, and bounded by its own time.
  if (!s.joining.TakesFrom(id)) {
    if (!link->frames) link->frames = PeerCeilings::Room(s.core.ceilings.frames);
    if (!link->frames->Take(now)) {
      ++link->status.cut.frames, ++counts.cut;
      if (link->peer != nullptr && link->peer->room) link->peer->room->above = true;
      return;
    }
  }
  const DecodeFault fault = s.core.Decode(frame, decoded);
  if (fault == DecodeFault::kVersion) s.members.Refuse(*link, "it speaks another version of the protocol");
  if (fault != DecodeFault::kNone) return;
  if (in.kind == MessageKind::kRefusal) {
    // A host of another version cannot read the number of what it refuses.
    if (in.snapshot != 0 && in.snapshot != link->hello) return s.joining.OnRefusal(*link, now);
    if (link->awaiting) s.members.Refuse(*link, in.text);    // else it refuses something that is over
    return;
  }
  if (in.incarnation == 0 || in.sender.empty()) {
    ++counts.junk;
    return;
  }
  if (in.kind == MessageKind::kWelcome) {
    if (Peer* const peer = s.members.OnWelcome(*link, now)) {
      s.joining.Start(*peer);
      s.hearing.OnWelcome(*peer);
    }
    return;
  }
  if (link->peer == nullptr) return;    // another link leads to that host, or none may
  if (link->peer->name != in.sender) {
    ++counts.forged;
    return;
  }
  switch (in.kind) {
    case MessageKind::kReport:
      return s.hearing.OnReport(*link->peer, frame, now);
    case MessageKind::kGone:
      return s.hearing.OnGone(*link->peer);
    case MessageKind::kSnapshot:
      return s.joining.OnPart(id, *link->peer, frame, now);
    case MessageKind::kSnapshotEnd:
      return s.joining.OnEnd(id, now);
    default:
      ++counts.junk;
  }
}

void Exchange::OnRequest(const Route& route, std::string_view identity, std::string_view frame, Instant now) {
  State& s = *state_;
  const Message& in = s.core.in;
  const DecodeFault fault = s.core.Decode(frame);
  // A host of another version sees that from any answer of ours.
  if (fault == DecodeFault::kVersion) return s.core.Refuse(route, "another version of the protocol", 0, now);
  if (fault != DecodeFault::kNone) return;
  const MessageKind kind = in.kind;
  if (kind != MessageKind::kHello && kind != MessageKind::kRepeat && kind != MessageKind::kSnapshotWanted) {
    ++s.core.counts.junk;
    return;
  }
  if (s.core.options.identities_proven && identity != in.sender) {
    ++s.core.counts.strangers;
    return s.core.Refuse(route, "your key belongs to another name", in.snapshot, now);
  }
  if (kind == MessageKind::kHello) {
    const bool welcome = s.members.OnHello(route, s.publishing.published(), now);
    if (welcome) s.publishing.Subscribe(route, in.sender, now);
    return;
  }
  Peer* const peer = s.members.Linked(in.sender);
  if (peer == nullptr) {
    s.members.CountUnknown(now);
    // Nobody could tell the refusal of a repeat from that of a hello. The request will be made again.
    if (kind == MessageKind::kSnapshotWanted) s.core.Refuse(route, "you are not a peer of mine", in.snapshot, now);
    return;
  }
  if (kind == MessageKind::kRepeat) return s.publishing.OnRepeat(route, *peer, now);
  s.giving.OnWanted(route, *peer, now);
}

bool Exchange::backlogged() const {
  return state_->backlogged();
}

bool Exchange::joining() const {
  return state_->joining.joining();
}

Instant Exchange::Tick(Instant now) {
  State& s = *state_;
  const bool more = s.MoveItems(now);
  if (s.core.next_pass() <= now) s.Pass(now);
  if (more) return now;
  return s.waiting() ? now + kBackloggedTick : s.core.next_pass();
}

bool Exchange::Drain(Instant now) {
  return !state_->MoveItems(now) && !state_->waiting() && state_->from_limiter.empty();
}

std::string Exchange::Life(Instant now) {
  return state_->Life(now);
}

bool Exchange::resumed() const {
  return state_->resumed;
}

std::vector<PeerStatus> Exchange::Peers(Instant now) const {
  const Links& links = state_->members.links();
  std::vector<PeerStatus> all;
  all.reserve(links.size());
  for (const auto& link : links) {
    PeerStatus& status = all.emplace_back(link->status);
    status.last_heard = status.reports == 0 ? Duration(-1) : now - link->last_report;
    const Peer* const peer = link->peer;
    if (peer == nullptr) continue;
    status.state = now < peer->silent_at() ? PeerState::kUp : PeerState::kSilent;
    status.number = peer->number;
    status.incarnation = peer->incarnation;
    status.sequence = peer->heard ? peer->heard->next() - 1 : 0;
  }
  return all;
}

ExchangeCounts Exchange::Counts() const {
  ExchangeCounts counts = state_->core.counts;
  counts.ring_frames = state_->publishing.ring().size();
  counts.ring_bytes = state_->publishing.ring().bytes();
  counts.subscribers = state_->publishing.subscribers();
  return counts;
}

}    // namespace dthrottle
