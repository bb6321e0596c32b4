#include "bus/membership.h"

#include <algorithm>
#include <utility>

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

constexpr Duration kHelloEvery = 1s;    // to a peer that is not heard
constexpr Duration kHelloHastened = 200ms;
constexpr Duration kHelloAgain = 30s;         // to one that is, or that refuses
constexpr std::size_t kUnknownMax = 64;       // names whose frames are not counted as strangers' yet
constexpr Duration kIntroductionMax = 10s;    // and for how long
constexpr std::size_t kLivesMax = 16;         // of one name
constexpr Duration kLifeKept = 2min;          // of a host that says hello no more

}    // namespace

// ---- Links ----

Link& Membership::Add(LinkId id, std::string address, std::string proven) {
  Link* const known = links_.Find(id);
  if (known == nullptr) ++connecting_, all_hastened_ = false;
  Link& link = known != nullptr ? *known : links_.Add(id);
  link.status.address = std::move(address);
  link.proven = std::move(proven);
  core_.PassSoon();
  return link;
}

void Membership::Remove(LinkId id) {
  Link* const link = links_.Find(id);
  if (link == nullptr) return;
  Unbind(*link);
  if (link->status.state == PeerState::kConnecting) --connecting_;
  links_.Remove(id);
  core_.PassSoon();
}

bool Membership::alone() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& its) { return its.link->status.state == PeerState::kSelf; });
}

void Membership::Bind(Link& link, Peer& peer, Instant now) {
  if (link.peer == &peer) return;
  Unbind(link);
  link.peer = &peer;
  peer.link = &link;
  peer.came = 0;    // what was said meanwhile has not reached it
  --unlinked_;
  peer.alive = now;
}

void Membership::Unbind(Link& link) {
  if (link.peer == nullptr) return;
  link.peer->link = nullptr;
  link.peer = nullptr;
  ++unlinked_;
  // Another address of the same host may take its place.
  for (const auto& [id, other] : links_) {
    if (other.get() != &link && other->status.name == link.status.name) other->hello_sent -= kHelloAgain;
  }
  core_.PassSoon();
}

void Membership::Answered(Link& link, PeerState state) {
  if (link.status.state == PeerState::kConnecting) --connecting_;
  link.status.state = state;
}

void Membership::Refuse(Link& link, std::string why) {
  Unbind(link);
  Answered(link, PeerState::kRefused);
  link.status.reason = std::move(why);
}

// ---- Hosts ----

Peer* Membership::Linked(std::string_view name) {
  const auto it = peers_.find(name);
  return it == peers_.end() || it->second.link == nullptr ? nullptr : &it->second;
}

Peer& Membership::FindOrAdd(const std::string& name) {
  if (const auto it = peers_.find(name); it != peers_.end()) return it->second;
  if (unlinked_ >= kPositionsMax) {
    const auto gone =
        std::find_if(peers_.begin(), peers_.end(), [](const auto& p) { return p.second.link == nullptr; });
    free_number_ = gone->second.number;
    if (*free_number_ < numbered_.size()) numbered_[*free_number_] = nullptr;
    peers_.erase(gone);
    --unlinked_;
  }
  Peer& peer = peers_[name];
  peer.name = name;
  peer.number = free_number_.value_or(static_cast<std::uint32_t>(peers_.size() - 1));
  free_number_.reset();
  Number(peer);
  ++unlinked_;
  return peer;
}

// ---- Hello ----

Instant Membership::HelloDue(const Link& link) const {
  if (link.status.state == PeerState::kSelf) return ExchangeCore::kNever;
  if (link.hastened) return link.hello_sent + kHelloHastened;
  const Instant soon = link.hello_sent + kHelloEvery + link.jitter, late = soon + (kHelloAgain - kHelloEvery);
  if (link.peer != nullptr && link.peer->heard && !link.peer->audit.known()) return soon;    // a welcome says it
  if (link.peer != nullptr) return std::min(late, std::max(soon, link.peer->quiet_at()));
  // Hosts whose owners differ may soon have the same.
  return link.status.state == PeerState::kRefused && core_.owners == nullptr ? late : soon;
}

void Membership::Hasten(Link& link) {
  link.hastened = true;
  core_.PassSoon();
}

// A fleet that starts says so many hellos that each must not look at every link.
void Membership::HastenConnecting() {
  if (connecting_ == 0) return;
  core_.PassSoon();
  if (std::exchange(all_hastened_, true)) return;
  for (const auto& [id, link] : links_) {
    if (link->status.state == PeerState::kConnecting) link->hastened = true;
  }
}

void Membership::SayHello(Link& link, std::uint64_t published, Instant now) {
  Message& m = core_.Begin(MessageKind::kHello, now);
  m.sequence = published;
  m.period = core_.options.period;
  m.text = core_.options.version;
  m.owners = core_.epoch();
  m.site = core_.options.site;
  // A hello said again keeps its number: where the way there and back takes longer than the time between two hellos,
  // a number of its own for each would make every answer one to an earlier hello.
  if (!link.awaiting) link.hello = core_.prng.Next() | 1;
  m.snapshot = link.hello;
  link.awaiting = true;
  link.hastened = all_hastened_ = false;
  link.hello_sent = now;
  link.jitter = Duration(static_cast<Duration::rep>(core_.prng.Below(kHelloEvery.count() / 4)));
  core_.transport.Ask(link.status.link, core_.Encoded());
}

// Lists of which one can be newer fit; two that settings begin with do not.
bool Membership::FitsOurs(std::uint64_t epoch) const {
  const std::uint64_t ours = core_.epoch();
  if (epoch == ours) return true;
  const bool both_first = Owners::NumberOf(epoch) == Owners::kFirst && Owners::NumberOf(ours) == Owners::kFirst;
  return epoch != 0 && ours != 0 && !both_first;
}

// The number of another site; none: it is not among ours.
std::optional<std::uint32_t> Membership::SiteOf(std::string_view site) const {
  const auto& sites = core_.options.other_sites;
  const auto it = std::find(sites.begin(), sites.end(), site);
  return it == sites.end() ? std::nullopt : std::optional(static_cast<std::uint32_t>(it - sites.begin()));
}

// Why the sender of the hello or welcome that has come cannot be a peer; null: it can.
const char* Membership::ComplaintAboutSite() const {
  const std::string& ours = core_.options.site;
  const std::string& its = core_.in.site;
  if (ours.empty()) return its.empty() ? nullptr : "this is an address for hosts of one site: see sites.connect";
  if (its.empty()) return "this is an address for other sites: see peers.connect";
  if (its == ours) return core_.in.sender == core_.options.name ? nullptr : "your site is also mine";
  return SiteOf(its) ? nullptr : "your site is not among sites.others";
}

bool Membership::OnHello(const Route& route, const Published& published, Instant now) {
  const Message& in = core_.in;
  if (in.sender == core_.options.name && in.incarnation != core_.options.incarnation) {
    core_.Refuse(route, "your name is also mine", in.snapshot, now);
    return false;
  }
  if (!FitsOurs(in.owners)) {
    core_.Refuse(route, "your peers.spread or peers.owners differ from mine", in.snapshot, now);
    return false;
  }
  if (const char* const complaint = ComplaintAboutSite()) {
    core_.Refuse(route, complaint, in.snapshot, now);
    return false;
  }
  Message& m = core_.Begin(MessageKind::kWelcome, now);
  m.sequence = published.sequence;
  m.ring_low = published.low;
  m.hits = published.hits;
  m.told = published.before;
  m.period = core_.options.period;
  m.text = core_.options.version;
  m.snapshot = in.snapshot;
  m.owners = published.epoch;
  m.site = core_.options.site;
  core_.transport.Answer(route, core_.Encoded());
  if (in.sender == core_.options.name) return false;
  if (Linked(in.sender) != nullptr) return true;
  // It may be a peer that has just come up, and will soon want what we give to peers only.
  HastenConnecting();
  return true;
}

bool Membership::IsNamesake(Instant now) {
  const Message& in = core_.in;
  Peer* const peer = Linked(in.sender);
  if (peer == nullptr || in.incarnation == peer->welcome_incarnation || now >= peer->silent_at()) return false;
  std::vector<Life>& lives = lives_[peer->name];
  const auto known = std::ranges::find(lives, in.incarnation, &Life::number);
  if (known != lives.end()) {
    known->said = now;
    known->refused = known->judged;
    return known->refused;
  }
  if (lives.size() >= kLivesMax) lives.clear();
  lives.push_back({in.incarnation, now});
  peer->link->awaiting = false;    // what answers an earlier hello says nothing
  Hasten(*peer->link);
  return false;
}

// The peer of that name has answered a hello, in this life. Returns whether there is another host with its name: a life
// that has said hello since it was judged. Lives of a peer that is started anew several times in a row end before that.
bool Membership::JudgeLives(const std::string& name, std::uint64_t life, Instant now) {
  const auto known = lives_.find(name);
  if (known == lives_.end()) return false;
  std::erase_if(known->second, [&](const Life& its) { return its.number == life || its.said + kLifeKept < now; });
  for (Life& its : known->second) its.judged = true;
  const bool another = std::ranges::any_of(known->second, &Life::refused);
  if (known->second.empty()) lives_.erase(known);
  return another;
}

Peer* Membership::OnWelcome(Link& link, Instant now) {
  const Message& in = core_.in;
  if (!link.awaiting || in.snapshot != link.hello) return nullptr;    // of an earlier connection, or it came twice
  link.awaiting = link.hastened = false;
  if (!link.proven.empty() && in.sender != link.proven) {
    ++core_.counts.forged;
    Refuse(link, "its key belongs to another name: " + link.proven);
    return nullptr;
  }
  link.status.version = in.text;
  link.sequence = in.sequence;
  if (in.sender == core_.options.name) {
    link.status.name = in.sender;
    if (in.incarnation != core_.options.incarnation) {
      Refuse(link, "its name is also ours");
      return nullptr;
    }
    Unbind(link);
    Answered(link, PeerState::kSelf);
    core_.PassSoon();
    return nullptr;
  }
  if (Peer* peer = Linked(in.sender); peer != nullptr && peer->link != &link) {
    Refuse(link, "the same host as " + peer->link->status.address);
    link.status.name = in.sender;
    return nullptr;
  }
  if (const char* const complaint = ComplaintAboutSite()) {
    Refuse(link, complaint);
    return nullptr;
  }
  Peer& peer = FindOrAdd(in.sender);
  if (const auto site = SiteOf(in.site)) peer.number = *site;
  Bind(link, peer, now);
  unknown_.erase(in.sender);
  link.status.name = in.sender;
  Answered(link, PeerState::kUp);
  link.status.reason = JudgeLives(peer.name, in.incarnation, now) ? kNamesake : "";
  peer.SetPeriod(in.period);
  if (peer.welcome_incarnation != in.incarnation || peer.welcome_epoch != in.owners) {
    peer.welcome_epoch = in.owners;
    peer.welcome_incarnation = in.incarnation;
    peer.welcome_sequence = in.sequence;
    peer.welcome_hits = in.hits;
    peer.welcome_told = in.told;
    peer.welcome_low = in.ring_low;
  }
  if (!peer.heard || peer.incarnation == in.incarnation) peer.clock.Add(in.to, now);
  core_.PassSoon();
  return &peer;
}

// ---- Strangers ----

void Membership::CountUnknown(Instant now) {
  const std::string& name = core_.in.sender;
  const auto known = unknown_.find(name);
  if (connecting_ == 0 || (known == unknown_.end() && unknown_.size() >= kUnknownMax)) {
    ++core_.counts.strangers;
    return;
  }
  Unknown& sender = known != unknown_.end() ? known->second : unknown_[name] = {now};
  ++sender.frames;
  core_.PassAt(sender.since + kIntroductionMax);
}

Instant Membership::CountStrangers(Instant now) {
  const Instant late = connecting_ > 0 ? now - kIntroductionMax : ExchangeCore::kNever;
  Instant next = ExchangeCore::kNever;
  std::erase_if(unknown_, [&](const auto& one) {
    const bool over = one.second.since <= late;
    if (over) core_.counts.strangers += one.second.frames;
    if (!over) next = std::min(next, one.second.since + kIntroductionMax);
    return over;
  });
  return next;
}

}    // namespace dthrottle
