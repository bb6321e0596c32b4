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
#include "bus/owners/changing.h"
#include "bus/owners/levels.h"
#include "bus/owners/recovering.h"
#include "bus/owners/streams.h"
#include "bus/owners/two_way.h"

namespace dthrottle {
namespace {

constexpr Duration kBackloggedTick = std::chrono::milliseconds(1);
constexpr std::size_t kBacklogMax = 512;    // items of all peers that wait for the limiter
constexpr Duration kCallerMax = std::chrono::seconds(100);    // callers say hello every 30 s
constexpr int kItemsPerTick = 64;           // of the limiter, before the wire is looked at again
constexpr std::uint32_t kLifeVersion = 7;

}    // namespace

struct Exchange::State {
  State(Options o, ToPeersRing& from, FromPeersRing& to, Transport& transport, Prng prng, Instant now)
      : two_way(transport),
        core(std::move(o), to, two_way, prng, now),
        from_limiter(from),
        joining(core, members, now) {}

  bool waiting() const { return !core.to_limiter.empty() || joining.merging() || hearing.releasing(); }
  // Parts of a snapshot wait for what peers say, but not where this host joins by them.
  bool backlogged() const {
    const bool joins = joining.joining() && joining.merging();
    return core.to_limiter.size() >= kBacklogMax || joins || hearing.releasing();
  }
  std::uint64_t published(std::string_view host) const { return streams.For(host).ring().next() - 1; }

  void FromLimiter(ToPeers& item, Instant now) {
    switch (item.kind) {
      case ToPeers::Kind::kNone:
        return;
      case ToPeers::Kind::kHits:
      case ToPeers::Kind::kUrgent:
      case ToPeers::Kind::kPeriodEnd:
        return streams.FromLimiter(item, now);
      case ToPeers::Kind::kSnapshotBegin:
      case ToPeers::Kind::kSnapshotPart:
      case ToPeers::Kind::kSnapshotEnd:
        return giving.FromLimiter(item, now);
      case ToPeers::Kind::kLevels:
      case ToPeers::Kind::kNear:
        return levels.FromLimiter(item);
      case ToPeers::Kind::kOwners:
      case ToPeers::Kind::kHandoverPart:
      case ToPeers::Kind::kHandoverEnd:
        return changing.FromLimiter(item, now);
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

  static void Fields(auto& state, auto& self) { state(self.streams, self.members, self.joining, self.hearing); }

  // What a saved life begins with.
  struct LifeHead {
    std::uint32_t version = kLifeVersion;
    std::string host{};
    std::uint64_t incarnation = 0;
    std::uint64_t settings = 0;    // epoch of the owners that the settings name; 0: they name none
    std::uint64_t number = 0;      // of the owners in force, and their names, and those before
    std::vector<std::string> names{}, before{};
    bool counts_from_first = false, awaits_tags = false;

    static void Fields(auto& state, auto& self) {
      state(self.version, self.host, self.incarnation, self.settings, self.number, self.names, self.before,
            self.counts_from_first, self.awaits_tags);
      std::vector<std::string> sorted = self.names;
      std::sort(sorted.begin(), sorted.end());
      state.Check(self.version == kLifeVersion && (self.settings == 0) == sorted.empty() &&
                  sorted.size() <= Owners::kMost && std::unique(sorted.begin(), sorted.end()) == sorted.end() &&
                  (sorted.empty() || (self.number >= Owners::kFirst && self.number <= Owners::kNumberMost)));
    }
  };

  static std::uint64_t EpochOfSettings(const Options& options) { return options.owners ? options.owners->epoch() : 0; }

  // The incarnation that a saved life of this host states; none if it is of another host, or of another version.
  static std::optional<std::uint64_t> IncarnationOf(std::string_view life, const Options& options) {
    StateReader state(life);
    LifeHead head;
    state(head);
    const bool owned = options.owners != nullptr;
    if (!state.ok() || head.host != options.name || owned != !head.names.empty()) return std::nullopt;
    return head.incarnation;
  }

  std::string Life(Instant now) {
    streams.Flush(now);
    StateWriter state;
    LifeHead head{.host = core.options.name,
                  .incarnation = core.options.incarnation,
                  .settings = EpochOfSettings(core.options),
                  .counts_from_first = core.counts_from_first,
                  .awaits_tags = core.awaits_tags};
    if (core.owners != nullptr) {
      head.number = core.owners->number();
      head.names = core.owners->names();
      head.before = core.owners->before();
    }
    state(head);
    Fields(state, *this);
    return state.Take();
  }

  // If the settings name none of these owners, they are gone for good. A host that owns nothing itself then begins with
  // the list of its settings, or it would wait for a word of theirs.
  bool NamesNoneOf(const std::vector<std::string>& owners) const {
    const Owners& named = *core.options.owners;
    return !core.options.owners_registered && !named.Find(core.options.name) &&
           std::ranges::none_of(owners, [&](const std::string& owner) { return named.Find(owner).has_value(); });
  }

  // Goes on with the owners that were in force. Owners that the settings name only now are proposed.
  bool Resume(std::string_view life) {
    StateReader state(life);
    LifeHead head;
    state(head);
    if (!state.ok()) return false;
    if (core.owners != nullptr) {
      if (NamesNoneOf(head.names)) return false;
      core.owners = std::make_shared<const Owners>(head.names, head.number, head.before);
      core.counts_from_first = head.counts_from_first;
      if (core.options.owners_registered) {
        changing.Obey(core.options.owners);
      } else if (head.settings != EpochOfSettings(core.options)) {
        changing.Want(core.options.owners->names());
      }
    }
    Fields(state, *this);
    if (head.awaits_tags) changing.GoOnWithout();
    return resumed = state.ok() && state.at_end();
  }

  void Pass(Instant now) {
    core.BeginPass(now);
    Instant next = ExchangeCore::kNever;
    for (const auto& [id, link] : members.links()) {
      Instant due = members.HelloDue(*link);
      if (due <= now) {
        members.SayHello(*link, published(link->status.name), now);
        due = members.HelloDue(*link);
      }
      next = std::min(next, due);
      if (link->peer != nullptr) next = std::min(next, hearing.AskToRepeat(*link->peer, now));
    }
    ForgetCallers(now);
    next = std::min({next, joining.Pass(now), giving.Pass(now), changing.Pass(now), members.CountStrangers(now)});
    if (!joining.joining()) next = std::min(next, recovering.Pass(now));
    core.PassAt(next);
  }

  static bool IsCaller(const Peer& peer) { return TwoWay::IsCaller(peer.link->status.link); }

  // A host that says hello to an owner is linked by the route that it came by.
  void LinkCaller(const Route& route, Instant now) {
    const std::string name = core.in.sender;
    if (core.owners == nullptr || two_way.IsNamesake(name, core.in.incarnation)) return;
    if (const Peer* const peer = members.Linked(name); peer != nullptr && !IsCaller(*peer)) return;
    bool fresh = false;
    const LinkId id = two_way.Caller(name, route, core.in.incarnation, fresh, now);
    if (id == 0) return void(++core.counts.strangers);
    if (Link* const known = members.Find(id)) {
      if (!fresh && (known->peer == nullptr || known->peer->welcome_incarnation == core.in.incarnation)) return;
      known->awaiting = false;
      if (known->peer != nullptr) known->peer->came = 0;    // something may have been lost on the way
      return members.Hasten(*known);
    }
    Link& link = members.Add(id, "calls", core.options.identities_proven ? name : "");
    joining.OnLink(now);
    members.SayHello(link, published(name), now);
  }

  // The link to a host that says, by `route`, what only a peer has to say: null if there is none. A caller is welcomed by
  // the connection that it opened, and an owner may speak on the connection that another owner opened.
  Link* LinkOf(std::string_view sender, const Route& route) {
    if (const LinkId caller = two_way.Find(sender, route); caller != 0) return members.Find(caller);
    Peer* const peer = members.Linked(sender);
    return peer != nullptr && !IsCaller(*peer) ? peer->link : nullptr;
  }

  // The host that has this name now keeps it. Both are to know.
  void RefuseNamesake(const Route& route, std::uint64_t number, Instant now) {
    if (Peer* const peer = members.Linked(core.in.sender)) peer->link->status.reason = kNamesake;
    core.Refuse(route, "another host has your name", number, now);
  }

  void OnRefusal(Link& link, Instant now) {
    const Message& in = core.in;
    if (in.snapshot == ExchangeCore::kUnasked) {    // the answer to a hello says whether this host is meant
      if (link.peer != nullptr) members.Hasten(link);
    } else if (in.snapshot != 0 && in.snapshot != link.hello) {
      if (!recovering.OnRefusal(link, now)) joining.OnRefusal(link, now);
    } else if (link.awaiting) {    // else it refuses something that is over
      members.Refuse(link, in.text);    // a host of another version cannot read the number of what it refuses
    }
  }

  // The link, or without one that of the host of a proven name; null: there is none.
  Link* LinkOf(LinkId id, std::string_view proven) {
    if (id != 0) return members.Find(id);
    Peer* const peer = proven.empty() ? nullptr : members.Linked(proven);
    return peer != nullptr ? peer->link : nullptr;
  }
  // A frame of its host is below the ceiling; false, and counted: it is not.
  bool TakesFrame(Link& link, Instant now) {
    if (!link.frames) link.frames = PeerCeilings::Room(core.ceilings.frames);
    if (link.frames->Take(now)) return true;
    ++link.status.cut.frames, ++core.counts.cut;
    return false;
  }

  // The host has to be told again what its life before knew beside levels.
  void TellCame(Peer& peer) {
    if (!core.OwnsTags() || std::exchange(peer.came, core.in.incarnation) == core.in.incarnation) return;
    core.to_limiter.Push({FromPeers::Kind::kHostCame, {}, {}, 0, {}, peer.number});
  }

  // A caller to which a link of the settings leads now is reached by that.
  void ReplaceCaller(const Link& link) {
    const Message& in = core.in;
    if (!link.awaiting || in.snapshot != link.hello || TwoWay::IsCaller(link.status.link)) return;
    if (!link.proven.empty() && link.proven != in.sender) return;
    if (const LinkId caller = two_way.Forget(in.sender); caller != 0) members.Remove(caller);
  }

  // Lists of owners that differ are told, behind the welcome.
  void TellOwners(const Route& route, std::uint64_t theirs, Instant now) {
    if (core.owners == nullptr || theirs == core.epoch()) return;
    SayOwners(core, route, now);
  }

  void ForgetCallers(Instant now) {
    for (LinkId gone; (gone = two_way.TakeGone(now - kCallerMax)) != 0;) members.Remove(gone);
  }

  TwoWay two_way;
  ExchangeCore core;
  ToPeersRing& from_limiter;
  Membership members{core};
  Streams streams{core};
  Levels levels{core, members, streams};
  Joining joining;
  Recovering recovering{core, members};
  Changing changing{core, members, streams, joining};
  Hearing hearing{core, members, joining};
  Giving giving{core, members, streams};
  std::optional<Allowance> unlinked_frames;    // of tenants, by hosts that no link leads to
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
  if (const auto incarnation = State::IncarnationOf(life, options)) {
    make(*incarnation);
    if (state_->Resume(life)) return;
  }
  make(options.incarnation);
  state_->core.BeginAccount();
}

Exchange::~Exchange() = default;

void Exchange::AddLink(LinkId id, std::string address, Instant now, std::string proven) {
  State& s = *state_;
  Link& link = s.members.Add(id, std::move(address), std::move(proven));
  s.joining.OnLink(now);
  s.members.SayHello(link, s.published(""), now);
}

void Exchange::RemoveLink(LinkId id) {
  state_->members.Remove(id);
}

void Exchange::OnConnected(LinkId id) {
  Link* const link = state_->members.Find(id);
  if (link == nullptr) return;
  link->awaiting = false;    // an answer to what was said on the connection before may be of a life that is over
  if (link->peer != nullptr) link->peer->came = 0;
  state_->members.Hasten(*link);
}

void Exchange::SetCeilings(const PeerCeilings& ceilings) {
  State& s = *state_;
  s.core.ceilings = ceilings;
  s.unlinked_frames.reset();
  for (const auto& [id, link] : s.members.links()) {
    link->frames.reset();
    if (link->peer != nullptr) link->peer->room.reset();
  }
}

void Exchange::Bar(std::string_view name) {
  const Peer* const peer = state_->members.Linked(name);
  if (peer != nullptr) state_->core.to_limiter.Push({FromPeers::Kind::kHostBarred, {}, {}, 0, {}, peer->number});
}

void Exchange::SetOwners(std::vector<std::string> names) {
  state_->changing.Want(std::move(names));
}

void Exchange::ObeyOwners(std::shared_ptr<const Owners> list) {
  state_->changing.Obey(std::move(list));
}

std::shared_ptr<const Owners> Exchange::proposed() const {
  return state_->changing.proposed();
}

bool Exchange::Needs(LinkId id, Instant now) const {
  const Link* const link = state_->members.Find(id);
  return link != nullptr && state_->changing.Needs(link->status.name, now);
}

std::shared_ptr<const Owners> Exchange::owners() const {
  return state_->core.owners;
}

void Exchange::Expect(std::span<const LinkId> links) const {
  state_->members.links().Prefetch(links);
}

void Exchange::OnAnswer(LinkId link, std::string_view frame, Instant now) {
  Hear(link, frame, nullptr, now);
}

void Exchange::OnAnswer(LinkId link, std::string_view frame, const Decoded& decoded, Instant now) {
  Hear(link, frame, &decoded, now);
}

bool Exchange::Admits(LinkId id, std::string_view proven, Instant now) {
  State& s = *state_;
  if (Link* const link = s.LinkOf(id, proven)) return s.TakesFrame(*link, now);
  if (id != 0) return false;    // removed meanwhile
  if (!s.unlinked_frames) s.unlinked_frames = PeerCeilings::Room(s.core.ceilings.frames);
  if (s.unlinked_frames->Take(now)) return true;
  ++s.core.counts.cut;
  return false;
}

void Exchange::TurnedDown(LinkId id, std::string_view proven) {
  if (Link* const link = state_->LinkOf(id, proven)) ++link->status.cut.limits;
}

std::string_view Exchange::NameOf(LinkId id) const {
  const Link* const link = state_->members.Find(id);
  if (link == nullptr) return {};
  return link->proven.empty() ? link->status.address : link->proven;
}

void Exchange::Hear(LinkId id, std::string_view frame, const Decoded* decoded, Instant now) {
  State& s = *state_;
  Link* const link = s.members.Find(id);
  if (link == nullptr) return;    // removed meanwhile
  // A snapshot is as many frames as the donor's table needs, and has bounds of its own.
  if (!s.joining.TakesFrame(id) && !s.TakesFrame(*link, now)) {
    if (link->peer != nullptr && link->peer->room) link->peer->room->above = true;
    return;
  }
  const DecodeFault fault = s.core.Decode(frame, decoded);
  if (fault == DecodeFault::kVersion) s.members.Refuse(*link, "it speaks another version of the protocol");
  if (fault == DecodeFault::kNone) HearDecoded(*link, frame, now);
}

// What the host behind a link says, on whichever connection.
void Exchange::HearDecoded(Link& at, std::string_view frame, Instant now) {
  State& s = *state_;
  ExchangeCounts& counts = s.core.counts;
  const Message& in = s.core.in;
  Link* const link = &at;
  const LinkId id = at.status.link;
  if (in.kind == MessageKind::kRefusal) return s.OnRefusal(*link, now);
  if (in.incarnation == 0 || in.sender.empty()) {
    ++counts.junk;
    return;
  }
  if (in.kind == MessageKind::kWelcome) {
    s.ReplaceCaller(*link);
    if (Peer* const peer = s.members.OnWelcome(*link, now)) {
      s.joining.Start(*peer);
      s.hearing.OnWelcome(*peer);
      s.TellCame(*peer);
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
      return s.hearing.OnGone(*link->peer, now);
    case MessageKind::kSnapshot:
      return s.recovering.OnPart(id, *link->peer, now) ? void() : s.joining.OnPart(id, *link->peer, frame, now);
    case MessageKind::kSnapshotEnd:
      return s.recovering.OnEnd(id, now) ? void() : s.joining.OnEnd(id, now);
    case MessageKind::kLevels:
    case MessageKind::kNear:
      return s.levels.OnLevels(*link->peer, frame.size(), now);
    case MessageKind::kOwners:
    case MessageKind::kClosed:
    case MessageKind::kHandover:
    case MessageKind::kTaken:
      return s.changing.OnMessage(*link, now);
    case MessageKind::kHello:
    case MessageKind::kRepeat:
    case MessageKind::kSnapshotWanted:    // of an owner, which this host calls and is not called by
      if (s.core.owners) return HearRequest(TwoWay::RouteOf(id), now);
      [[fallthrough]];
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
  const bool request =
      kind == MessageKind::kHello || kind == MessageKind::kRepeat || kind == MessageKind::kSnapshotWanted;
  if (!request && s.core.owners == nullptr) {
    ++s.core.counts.junk;
    return;
  }
  if (s.core.options.identities_proven && identity != in.sender) {
    ++s.core.counts.strangers;
    return s.core.Refuse(route, "your key belongs to another name", in.snapshot, now);
  }
  if (request) return HearRequest(route, now);
  Link* const link = s.LinkOf(in.sender, route);
  if (link == nullptr) return s.LinkCaller(route, now);    // it calls, and what it says now will be asked for again
  if (!s.joining.TakesFrame(link->status.link) && !s.TakesFrame(*link, now)) return;
  if (s.two_way.IsNamesake(in.sender, in.incarnation)) return s.RefuseNamesake(route, ExchangeCore::kUnasked, now);
  HearDecoded(*link, frame, now);
}

// What asks for an answer, by a host that `route` proves to be the sender where anything does.
void Exchange::HearRequest(const Route& route, Instant now) {
  State& s = *state_;
  const Message& in = s.core.in;
  const MessageKind kind = in.kind;
  if (kind == MessageKind::kHello) {
    const std::string sender = in.sender;
    const std::uint64_t owners = in.owners;
    const bool namesake = s.core.owners ? s.two_way.IsNamesake(sender, in.incarnation) : s.members.IsNamesake(now);
    if (namesake) return s.RefuseNamesake(route, in.snapshot, now);
    if (!s.members.OnHello(route, s.streams.For(sender).published(), now)) return;
    s.streams.For(sender).Subscribe(route, sender, now);
    s.LinkCaller(route, now);
    return s.TellOwners(route, owners, now);
  }
  Peer* const peer = s.members.Linked(in.sender);
  if (peer == nullptr) {
    s.members.CountUnknown(now);
    // Nobody could tell the refusal of a repeat from that of a hello. The request will be made again.
    if (kind == MessageKind::kSnapshotWanted) s.core.Refuse(route, "you are not a peer of mine", in.snapshot, now);
    return;
  }
  if (kind == MessageKind::kRepeat) return s.streams.For(peer->name).OnRepeat(route, *peer, now);
  if (!s.core.options.site.empty()) return s.core.Refuse(route, "sites give no snapshots", in.snapshot, now);
  s.giving.OnWanted(route, *peer, now);
}

Transport& Exchange::wire() {
  return state_->two_way;
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
  s.recovering.AskNext(now);
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
  for (const auto& [id, link] : links) {
    PeerStatus& status = all.emplace_back(link->status);
    status.last_heard = status.reports == 0 ? Duration(-1) : now - link->last_report;
    const Peer* const peer = link->peer;
    if (peer == nullptr) continue;
    const bool up = now < peer->silent_at();
    status.state = up ? PeerState::kUp : PeerState::kSilent;
    if (const auto& owners = state_->core.owners; owners && owners->Find(peer->name)) {
      status.reason = up ? "owns tags" : "owns tags, which are held at its last word";
    }
    for (const std::string_view moves : state_->changing.MovesOf(peer->name)) {
      status.reason.append(status.reason.empty() ? "" : "; ").append(moves);
    }
    status.number = peer->number;
    status.incarnation = peer->incarnation;
    status.sequence = peer->heard ? peer->heard->next() - 1 : 0;
  }
  return all;
}

std::size_t Exchange::links() const {
  return state_->members.links().size();
}

ExchangeCounts Exchange::Counts() const {
  ExchangeCounts counts = state_->core.counts;
  const Streams::Sizes sizes = state_->streams.sizes();
  counts.ring_frames = sizes.frames;
  counts.ring_bytes = sizes.bytes;
  counts.subscribers = sizes.subscribers;
  counts.callers = state_->two_way.callers();
  if (const auto& owners = state_->core.owners) {
    counts.owners = owners->size();
    counts.owners_number = owners->number();
    counts.owners_differ = state_->changing.differs();
    counts.owners_awaited = state_->changing.awaited();
    counts.owners_giving = state_->changing.giving();
    counts.owners_closing = sizes.closing;
  }
  return counts;
}

}    // namespace dthrottle
