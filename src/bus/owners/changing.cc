#include "bus/owners/changing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "bus/owners/recovering.h"
#include "bus/owners/two_way.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kAskEvery = 100ms;
// How long this host waits for an owner of the list before.
constexpr Duration kPatience = 10s;              // where no link leads to it
constexpr Duration kPatienceQuiet = 3s;          // after its last word
constexpr Duration kPatienceSilent = 800ms;      // where it was silent before the change, and tags wait for it
constexpr Duration kPatienceMost = 30s;          // where it answers, and gives nothing
constexpr Duration kPatienceInAll = 60s;         // whatever it says; more than any change takes
constexpr Duration kSucceedEvery = 1s;           // how often this host looks whether the owners in force are gone
// An owner promises another one not to propose a list for so long. The other one relies on that for half of it.
constexpr Duration kPromise = 1s;
// How far ahead of the list in force a list of a peer may be: far more changes than a host misses, and far fewer than
// it takes to come to the last number.
constexpr std::uint64_t kListsAhead = std::uint64_t{1} << 20;
constexpr std::size_t kPartsAtOnce = 64;
constexpr std::uint64_t kTakenEvery = 32;          // parts
constexpr std::size_t kChangeBacklogMax = 64;    // items that wait for the limiter

Frame ListFrame(ExchangeCore& core, std::uint64_t stream, bool settled, Instant now) {
  Message& m = core.Begin(MessageKind::kOwners, now);
  m.owners = core.epoch();
  m.stream = stream;
  m.names.list = core.owners->names();
  m.before.list = core.owners->before();
  m.last = settled;
  return core.Encoded();
}

// Tells a host that asks for something that is not there yet that this host is alive.
void SayNotYet(ExchangeCore& core, LinkId link, Instant now) {
  core.Begin(MessageKind::kClosed, now).owners = core.epoch();
  core.transport.Ask(link, core.Encoded());
}

}    // namespace

void SayOwners(ExchangeCore& core, LinkId link, std::uint64_t stream, Instant now) {
  core.transport.Ask(link, ListFrame(core, stream, core.owners_settled, now));
}

void SayOwners(ExchangeCore& core, const Route& route, Instant now) {
  core.transport.Answer(route, ListFrame(core, 0, core.owners_settled, now));
}

void Changing::Want(std::vector<std::string> names) {
  if (core_.owners == nullptr || names.empty()) return;
  std::sort(names.begin(), names.end());
  if (proposed_ && proposed_->names() == names) return;
  named_ = std::move(names);
  wants_ = true;
  wanted_since_.reset();
  asks_since_.reset();
  proposed_.reset();
  core_.PassSoon();
}

void Changing::Obey(std::shared_ptr<const Owners> list) {
  if (core_.owners == nullptr || list->epoch() <= std::max(core_.epoch(), next_ ? next_->epoch() : 0)) return;
  next_ = std::move(list);
  core_.PassSoon();
}

// ---- One list after the other ----

// An owner that wants to propose a list asks whether this one is done with the change before. Where both want to, the
// lesser name goes first. Nobody else may propose one, so a question of another host must not hold this one back.
void Changing::Allow(const Link& link, Instant now) {
  if (!core_.owners->Find(link.peer->name)) return void(++core_.counts.implausible);
  const bool first = Proposes(now) && core_.options.name < link.peer->name;
  if (core_.owners_settled && !first) promised_until_ = now + kPromise;
  core_.transport.Ask(link.status.link, ListFrame(core_, 0, core_.owners_settled && !first, now));
}

bool Changing::idle(Instant now) const {
  return !switching_ && !walking_ && taking_.empty() && (giving_.empty() || now >= adopted_at_ + kPatience);
}

bool Changing::Proposes(Instant now) const {
  if (!wants_ || !names_others() || core_.owners->number() >= Owners::kNumberMost) return false;
  return core_.OwnsTags() || (succeeds() && OwnersAreGone(now));
}

// The settings name this host, and none of the owners in force.
bool Changing::succeeds() const {
  const auto named = [&](const std::string& host) { return std::ranges::binary_search(named_, host); };
  return !core_.options.owners_registered && named(core_.options.name) &&
         std::ranges::none_of(core_.owners->names(), named);
}

bool Changing::OwnersAreGone(Instant now) const {
  return std::ranges::none_of(core_.owners->names(), [&](const std::string& owner) {
    const Peer* const peer = members_.Linked(owner);
    return now < std::max(peer != nullptr ? peer->alive : Instant(), wanted_since_.value_or(now)) + kPatience;
  });
}

// Whether all owners in force and before are done with the last change, and none is about to propose a list. They are
// asked. An owner that answers and is never done is not waited for without end.
bool Changing::AllSettled(Instant now) {
  if (now >= *asks_since_ + kPatienceInAll) return true;
  if (now < promised_until_) return false;
  bool all = true;
  const auto look = [&](const std::string& owner) {
    const Peer* const peer = members_.Linked(owner);
    if (peer == nullptr || !Patient(owner, adopted_at_, now)) return;
    if (peer->settled_epoch == core_.epoch() && now < peer->settled_at + kPromise / 2) return;
    all = false;
    if (ask_settled_at_ <= now) SayOwners(core_, peer->link->status.link, core_.epoch(), now);
  };
  for (const std::string& owner : core_.owners->names()) look(owner);
  for (const std::string& owner : core_.owners->before()) look(owner);
  if (ask_settled_at_ <= now) ask_settled_at_ = now + kAskEvery;
  return all;
}

void Changing::Adopt(std::shared_ptr<const Owners> list, Instant now) {
  const std::shared_ptr<const Owners> before = std::exchange(core_.owners, std::move(list));
  const Owners& next = *core_.owners;
  if (core_.options.owners_registered) wants_ = false;
  asks_since_.reset();
  proposed_.reset();
  ++core_.counts.owners_changes;
  core_.counts.owners_conflicts += before->number() == next.number();
  core_.owners_settled = false;
  promised_until_ = {};
  adopted_at_ = now;
  goes_on_ = before->names() == next.before();
  missed_ = false;
  before_.reset();
  if (!next.before().empty()) before_.emplace(next.before());
  TakeFrom(next, now);
  GiveTo(*before, next);
  core_.awaits_tags = !taking_.empty();
  core_.counts_from_first = true;
  if (joining_.joining() && before_) joining_.Stop();    // what would be taken from a host comes from owners
  switching_ = true;
  walking_ = before->Find(core_.options.name).has_value();
  FromPeers item;
  item.kind = FromPeers::Kind::kOwners;
  item.owners = core_.owners;
  item.awaits_tags = core_.awaits_tags;
  core_.to_limiter.Push(std::move(item));
  if (!core_.OwnsTags() && !walking_) return;
  for (const auto& [id, link] : members_.links()) {
    if (link->peer != nullptr) SayOwners(core_, link->status.link, 0, now);
  }
}

// Tags move from an owner that leaves the list to any other, and from any other to one that joins it.
void Changing::TakeFrom(const Owners& list, Instant now) {
  taking_.clear();
  if (!core_.OwnsTags() || !before_) return;
  const bool joins = !before_->Find(core_.options.name);
  for (const std::string& owner : before_->names()) {
    if (owner == core_.options.name || !(joins || !list.Find(owner))) continue;
    taking_[owner] = {now, now, now};
  }
}

void Changing::GiveTo(const Owners& before, const Owners& list) {
  giving_.clear();
  if (!before.Find(core_.options.name) || !before_ || !before_->Find(core_.options.name)) return;
  const bool leaves = !list.Find(core_.options.name);
  for (const std::string& owner : list.names()) {
    if (owner != core_.options.name && (leaves || !before_->Find(owner))) giving_[owner];
  }
}

Instant Changing::Pass(Instant now) {
  if (core_.owners == nullptr) return ExchangeCore::kNever;
  Instant next = std::min(AskForTags(now), AskToClose(now));
  if (!core_.awaits_tags) streams_.ReleaseOwn();
  if (now >= adopted_at_ + kPatienceMost) giving_.clear();    // an owner that has not asked takes what hosts claim
  core_.owners_settled = idle(now) && !core_.awaits_tags;
  if (!next_ && !wants_) return next;
  if (!core_.owners_settled) return std::min(next, now + kAskEvery);
  if (next_ && next_->epoch() > core_.epoch()) {
    Adopt(std::exchange(next_, nullptr), now);
    return now;
  }
  next_.reset();
  if (!wanted_since_) wanted_since_ = now;
  if (!Proposes(now)) {
    wants_ = names_others() && succeeds();
    return wants_ ? std::min(next, now + kSucceedEvery) : next;
  }
  if (!asks_since_) asks_since_ = now;
  if (!AllSettled(now)) return std::min(next, now + kAskEvery);
  wants_ = false;
  const Owners& ours = *core_.owners;
  auto list = std::make_shared<const Owners>(named_, ours.number() + 1, ours.names());
  if (core_.options.owners_registered) return proposed_ = std::move(list), next;
  Adopt(std::move(list), now);
  return now;
}

// ---- What hosts tell each other of it ----

void Changing::OnMessage(const Link& link, Instant now) {
  Peer& peer = *link.peer;
  peer.alive = std::max(peer.alive, now);
  switch (core_.in.kind) {
    case MessageKind::kOwners:
      return OnOwners(link, now);
    case MessageKind::kClosed:
      return OnClosed(peer, now);
    case MessageKind::kHandover:
      return OnHandover(peer, now);
    case MessageKind::kTaken:
      return OnTaken(peer, now);
    default:
      DT_CHECK(false);
  }
}

void Changing::OnOwners(const Link& link, Instant now) {
  const Message& in = core_.in;
  if (core_.owners == nullptr) return void(++core_.counts.junk);
  if (in.owners < core_.epoch()) {
    if (link.peer->lists.Take(now)) SayOwners(core_, link.status.link, 0, now);
    return;
  }
  if (Owners::NumberOf(in.owners) > core_.owners->number() + kListsAhead) return void(++core_.counts.implausible);
  if (in.last) link.peer->settled_epoch = in.owners, link.peer->settled_at = now;
  if (in.last && in.owners == core_.epoch()) giving_.erase(link.peer->name);
  if (in.owners == core_.epoch()) {
    if (in.stream == in.owners) return Allow(link, now);
    return in.stream != 0 ? Answer(link, now) : void();
  }
  MissIfBeyond(*link.peer);
  if (in.stream != 0) SayNotYet(core_, link.status.link, now);
  if (!core_.owners->Find(link.peer->name) && TwoWay::IsCaller(link.status.link)) return;
  auto list = std::make_shared<const Owners>(in.names.list, Owners::NumberOf(in.owners), in.before.list);
  if (list->epoch() != in.owners) return void(++core_.counts.implausible);
  Obey(std::move(list));
}

// Says what this host has counted of the sender's stream. It counts nothing else of it: it has another list now.
void Changing::Answer(const Link& link, Instant now) {
  const Message& in = core_.in;
  if (in.stream > core_.epoch()) return void(++core_.counts.implausible);
  const Peer& peer = *link.peer;
  const std::uint64_t stream = in.stream, incarnation = in.incarnation;
  Message& m = core_.Begin(MessageKind::kClosed, now);
  m.owners = core_.epoch();
  m.stream = stream;
  if (peer.heard && peer.heard_epoch == stream && peer.incarnation == incarnation) {
    m.sequence = peer.heard->next() - 1;
    for (const auto& range : peer.heard->missing()) m.ranges.push_back({range.first, range.last});
  }
  core_.transport.Ask(link.status.link, core_.Encoded());
}

void Changing::OnClosed(const Peer& peer, Instant now) {
  const Message& in = core_.in;
  MissIfBeyond(peer);
  Stream* const stream = streams_.Closing(peer.name);
  if (stream == nullptr || in.stream != stream->publishing->epoch()) return;
  if (stream->counted_by != 0 && stream->counted_by != in.incarnation) return streams_.GiveUp(peer.name, now);
  const std::uint64_t counted = in.sequence;
  const std::vector<SequenceRange> missing = in.ranges;
  streams_.Close(peer.name, counted, missing, now);
  core_.PassSoon();
}

std::vector<std::string_view> Changing::MovesOf(const std::string& host) const {
  std::vector<std::string_view> moves;
  if (taking_.contains(host)) moves.emplace_back("hands over tags to this host");
  if (giving_.contains(host)) moves.emplace_back("takes over tags of this host");
  if (streams_.Closing(host) != nullptr) moves.emplace_back("has yet to say what it counted by the list before");
  return moves;
}

bool Changing::Needs(const std::string& host, Instant now) const {
  if (core_.owners == nullptr) return false;
  return core_.owners->Find(host) || taking_.contains(host) || giving_.contains(host) ||
         streams_.Closing(host) != nullptr || switching_ ||
         (core_.counts.owners_changes > 0 && now < adopted_at_ + kPatience);
}

// An owner that is silent is not waited for; one to which there is no link may have gone in order. A register takes
// owners out of the list that are known to be gone.
bool Changing::Patient(const std::string& owner, Instant since, Instant now) {
  const Peer* const peer = members_.Linked(owner);
  const bool registered = core_.options.owners_registered;
  if (peer == nullptr) return now < since + (registered ? kPatienceQuiet : kPatience);
  if (registered && !core_.owners->Find(owner) && peer->alive + kPatienceQuiet < since) return false;
  const bool was_silent = taking_.contains(owner) && peer->alive + 2 * peer->period < since;
  return now < std::max(peer->alive, since) + (was_silent ? kPatienceSilent : kPatienceQuiet);
}

Instant Changing::AskToClose(Instant now) {
  Instant next = ExchangeCore::kNever;
  std::vector<std::string> gone;
  streams_.ForEachClosing([&](const std::string& owner, Stream& stream) {
    if (!core_.owners->Find(owner) && !Patient(owner, stream.closing_since, now)) return gone.push_back(owner);
    if (stream.ask_at <= now) {
      stream.ask_at = now + kAskEvery;
      if (const Peer* const peer = members_.Linked(owner)) {
        SayOwners(core_, peer->link->status.link, stream.publishing->epoch(), now);
      }
    }
    next = std::min(next, stream.ask_at);
  });
  for (const std::string& owner : gone) streams_.GiveUp(owner, now);
  return next;
}

// ---- Tags that move ----

void Changing::FromLimiter(ToPeers& item, Instant now) {
  core_.PassSoon();
  if (item.kind == ToPeers::Kind::kOwners) {
    switching_ = false;
    return streams_.Switch(now);
  }
  if (item.kind == ToPeers::Kind::kHandoverEnd) {
    walking_ = false;
    for (auto& [owner, parts] : giving_) {
      if (parts.empty()) parts.push_back({now, {}});    // says that there is none
    }
    return;
  }
  std::map<std::string, Part> cut;
  for (const Entry& e : item.entries.list()) {
    const Tag tag = item.entries.tag(e);
    Part& part = cut[core_.owners->name(core_.owners->Of(tag))];
    part.to = item.to;
    part.entries.Add(tag, e.value, 0);
  }
  for (auto& [owner, part] : cut) {
    if (const auto to = giving_.find(owner); to != giving_.end()) to->second.push_back(std::move(part));
  }
}

void Changing::OnTaken(const Peer& peer, Instant now) {
  const std::uint64_t taken = core_.in.sequence;
  if (core_.in.owners != core_.epoch() || switching_ || walking_) {
    return SayNotYet(core_, peer.link->status.link, now);    // it asks again
  }
  const auto to = giving_.find(peer.name);
  const auto say = [&](std::uint64_t part, std::uint64_t parts, Instant at, const Entries& entries) {
    Message& m = core_.Begin(MessageKind::kHandover, at);
    m.owners = core_.epoch();
    m.sequence = part;
    m.parts = parts;
    m.entries = entries;
    core_.transport.Ask(peer.link->status.link, core_.Encoded());
  };
  if (to == giving_.end()) return say(0, 0, now, {});
  const std::vector<Part>& parts = to->second;
  for (std::uint64_t i = taken; i < std::min(parts.size(), taken + kPartsAtOnce); ++i) {
    say(i + 1, parts.size(), parts[i].to, parts[i].entries);
  }
  if (taken < parts.size()) return;
  giving_.erase(to);
  core_.PassSoon();
}

void Changing::OnHandover(Peer& peer, Instant now) {
  Message& in = core_.in;
  const auto from = taking_.find(peer.name);
  if (in.owners != core_.epoch() || from == taking_.end() || core_.to_limiter.size() >= kChangeBacklogMax) return;
  if (in.parts == 0) return Miss(peer.name);    // another life of this host has them
  if (in.sequence != from->second.parts + 1) return;
  for (const Entry& e : in.entries.list()) {
    const Tag tag = in.entries.tag(e);
    const bool ours = core_.owners->name(core_.owners->Of(tag)) == core_.options.name;
    if (ours && before_->name(before_->Of(tag)) == peer.name) continue;
    ++core_.counts.implausible;
    return Miss(peer.name);
  }
  from->second.moved_at = now;
  const Instant to = peer.clock.ToOurs(in.to, now);
  const std::uint64_t taken = ++from->second.parts, parts = in.parts;
  if (!in.entries.empty()) {
    core_.to_limiter.Push({FromPeers::Kind::kHandover, to, to, 0, std::move(in.entries), peer.number});
  }
  if (taken == parts || taken % kTakenEvery == 0) SayTaken(peer, taken, now);
  if (taken < parts) return;
  taking_.erase(from);
  core_.PassSoon();
}

void Changing::SayTaken(const Peer& peer, std::uint64_t parts, Instant now) {
  Message& m = core_.Begin(MessageKind::kTaken, now);
  m.owners = core_.epoch();
  m.sequence = parts;
  core_.transport.Ask(peer.link->status.link, core_.Encoded());
}

void Changing::GoOnWithout() {
  core_.to_limiter.Push({FromPeers::Kind::kJoined, {}, {}, 0, {}});
  members_.ForEach([](Peer& peer) { peer.AskForLevels(); });
}

void Changing::Miss(const std::string& owner) {
  core_.counts.owners_missed += taking_.erase(owner);
  missed_ = true;
  core_.PassSoon();
}

// A host that has another list than this one gives nothing by this one any more.
void Changing::MissIfBeyond(const Peer& peer) {
  if (core_.in.owners > core_.epoch() && taking_.contains(peer.name)) Miss(peer.name);
}

Instant Changing::AskForTags(Instant now) {
  if (!core_.awaits_tags) return ExchangeCore::kNever;
  Instant next = ExchangeCore::kNever;
  std::vector<std::string> gone;
  for (auto& [owner, taking] : taking_) {
    const Instant until = std::min(taking.moved_at + kPatienceMost, taking.since + kPatienceInAll);
    if (!Patient(owner, taking.since, now) || now > until) gone.push_back(owner);
    if (taking.ask_at <= now) {
      taking.ask_at = now + kAskEvery;
      if (const Peer* const peer = members_.Linked(owner)) SayTaken(*peer, taking.parts, now);
    }
    next = std::min(next, taking.ask_at);
  }
  for (const std::string& owner : gone) Miss(owner);
  if (taking_.empty()) TakenAll();
  return next;
}

// Where tags did not come from their owner, the lowest level that any host claims counts. And where this is not the
// first life that owns them by this list, what hosts have told the life before counts as heard, unless this one knows
// how far that had counted.
void Changing::TakenAll() {
  core_.awaits_tags = false;
  core_.counts_from_first = goes_on_ || !missed_;
  core_.to_limiter.Push({FromPeers::Kind::kJoined, {}, {}, 0, {}});
  for (const auto& [id, link] : members_.links()) {
    Peer* const peer = link->peer;
    if (peer == nullptr || !missed_) continue;
    const bool is_of_list = peer->welcome_epoch == core_.epoch();
    if (is_of_list && GoOnCounting(core_, *peer)) continue;
    peer->AskForLevels();
    if (core_.counts_from_first || !is_of_list) continue;
    CountUncounted(core_, *peer);
    peer->Follow(peer->welcome_incarnation, peer->welcome_sequence + 1);
    peer->heard_epoch = core_.epoch();
  }
  core_.PassSoon();
}

}    // namespace dthrottle
