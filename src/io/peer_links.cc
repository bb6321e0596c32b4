#include "io/peer_links.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/host_name.h"

namespace dthrottle {

namespace {

constexpr int kRequestsMax = 64;    // waiting for one peer
constexpr Duration kPatienceMax = std::chrono::seconds(15), kSilenceMin = std::chrono::seconds(5);
constexpr std::string_view kScheme = "tcp://";
constexpr char kMonitorAddress[] = "inproc://dthrottle.links";

LinkId LinkOf(const std::string& route) {
  LinkId id = 0;
  if (route.size() == 1 + 2 * sizeof(std::uint32_t)) std::memcpy(&id, route.data() + 1, sizeof id);
  return id;
}

const char* Word(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "does not answer";
    case PeerState::kUp:
      return "is up";
    case PeerState::kSilent:
      return "has fallen silent";
    case PeerState::kSelf:
      return "is this host itself";
    case PeerState::kRefused:
      return "and this host refuse each other";
  }
  return "";
}

}    // namespace

// The name of a link on ROUTER out. Every dial has a name of its own: libzmq aborts if a name comes back before the
// connection that had it is quite gone.
std::string PeerLinks::RouteOf(const Link& link) {
  std::string route(1 + 2 * sizeof(std::uint32_t), 'L');
  std::memcpy(route.data() + 1, &link.id, sizeof link.id);
  std::memcpy(route.data() + 1 + sizeof link.id, &link.dials, sizeof link.dials);
  return route;
}

void PeerLinks::Open() {
  // One ROUTER for all links, with a name given to each connection, rather than a DEALER for each: polling 200
  // DEALERs takes 140 us a turn and this 1 us. It notices (EHOSTUNREACH) when libzmq has given a connection up, and a
  // dead peer costs at most kRequestsMax messages, the same as with DEALERs.
  answers_ = Inbox(MakeRouter(context_), 1);
  answers_.socket.set(zmq::sockopt::router_mandatory, 1);
  answers_.socket.set(zmq::sockopt::sndhwm, kRequestsMax);
  // With a domain libzmq asks about every connection, also where there are no keys. Without one it takes whatever does
  // not begin as ZMTP 3, such as the answer of a web server, for ZMTP 1, and may end the process by an assertion.
  answers_.socket.set(zmq::sockopt::zap_domain, kZapDomain);
  if (options_.keys) {
    answers_.socket.set(zmq::sockopt::curve_publickey, options_.keys->public_key);
    answers_.socket.set(zmq::sockopt::curve_secretkey, options_.keys->secret_key);
  }
  if (zmq_socket_monitor(answers_.socket.handle(), kMonitorAddress, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0) {
    throw zmq::error_t();
  }
  connections_ = zmq::socket_t(context_, zmq::socket_type::pair);
  connections_.set(zmq::sockopt::linger, 0);
  connections_.connect(kMonitorAddress);
}

void PeerLinks::Close() {
  zmq_socket_monitor(answers_.socket.handle(), nullptr, 0);
  connections_.close();
  answers_.socket.close();
}

void PeerLinks::Ask(LinkId id, const Frame& frame) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Link& link = *found->second;
  if (SendTo(answers_.socket, RouteOf(link), frame)) return;
  ++counts_.unsent;
  link.broken = link.broken || errno == EHOSTUNREACH;
}

LinkId PeerLinks::Answering() const {
  const auto found = by_id_.find(LinkOf(answers_.route));
  return found != by_id_.end() && RouteOf(*found->second) == answers_.route ? found->first : 0;
}

// libzmq connects anew by itself; the host there knows nothing of the connection before. An event is a number and a
// value, 16 and 32 bits, and then the address as it was dialed.
void PeerLinks::OnConnections() {
  for (int i = 0; i < kPartsPerTurn; ++i) {
    zmq::message_t event, address;
    if (zmq_msg_recv(event.handle(), connections_.handle(), ZMQ_DONTWAIT) < 0 || !event.more()) return;
    if (zmq_msg_recv(address.handle(), connections_.handle(), ZMQ_DONTWAIT) < 0) return;
    const std::string_view url = address.to_string_view();
    if (!url.starts_with(kScheme)) continue;
    const auto link = links_.find(std::string(url.substr(kScheme.size())));
    if (link != links_.end()) exchange_.OnConnected(link->second.id);
  }
}

const std::string* PeerLinks::KeyFor(const Resolver::Address& address, std::string& why) const {
  static const std::string kNone;
  const std::string text = FormatEndpoint(address.endpoint);
  if (!options_.keys) {
    if (IsLoopback(address.endpoint)) return &kNone;
    why = fmt::format("tcp://{} is not loopback, and this host has no key_file", text);
    return nullptr;
  }
  // A name can lead to several hosts, so what a key's own file says of the address comes first.
  const std::string* const at = options_.authorized.NameAt(text);
  const std::string& name = at != nullptr ? *at : address.key_name;
  const std::string* const key = options_.authorized.KeyOf(name);
  if (key == nullptr) {
    why = name.empty()
              ? fmt::format("no key is known for tcp://{}: add #NAME or an address line to its .pub file", text)
              : fmt::format("no key is known for tcp://{}: there is no {}.pub", text, name);
  }
  return key;
}

void PeerLinks::DeadEnd(const std::string& address, PeerState state, std::string reason) {
  PeerStatus status;
  status.address = address;
  status.state = state;
  status.reason = std::move(reason);
  status.last_heard = Duration(-1);
  dead_ends_.push_back(std::move(status));
}

// By address; what leads nowhere is a dead end.
std::map<std::string, PeerLinks::Wanted> PeerLinks::WantedLinks(const Resolver& resolver) {
  std::map<std::string, Wanted> wanted;
  dead_ends_.clear();
  for (const Resolver::Address& address : resolver.Addresses()) {
    const std::string url = FormatBind(address.endpoint);
    const bool named = !address.entry.starts_with(url);
    std::string shown = named ? fmt::format("{} ({})", url, address.entry) : url, why;
    if (const std::string* const key = KeyFor(address, why)) {
      const std::string* const name = options_.keys ? options_.authorized.NameOf(*key) : nullptr;
      wanted[FormatEndpoint(address.endpoint)] = {address.endpoint, *key, name != nullptr ? *name : "",
                                                  std::move(shown)};
    } else {
      DeadEnd(shown, PeerState::kRefused, why);
    }
  }
  std::set<std::string> complaints;
  for (const Resolver::Failure& failure : resolver.Failures()) {
    if (failure.nothing_known) {
      DeadEnd(failure.entry, PeerState::kConnecting, failure.reason);
    } else {
      complaints.insert(fmt::format("{}: {}; keeping the addresses of before", failure.entry, failure.reason));
    }
  }
  for (const PeerStatus& status : dead_ends_) complaints.insert(fmt::format("{}: {}", status.address, status.reason));
  for (const std::string& complaint : complaints) {
    if (!complaints_.contains(complaint)) Say(options_, LogLevel::kWarning, "{}", complaint);
  }
  complaints_ = std::move(complaints);
  return wanted;
}

// The peer may still be talked to.
bool PeerLinks::HasKey(const Link& link) const {
  if (!options_.keys) return true;
  const std::string* const name = options_.authorized.NameOf(link.server_key);
  return name != nullptr && *name == link.name;
}

// Removes links that are not wanted, and dials those again whose key is another.
void PeerLinks::Drop(const std::map<std::string, Wanted>& wanted, Instant now) {
  keeps_ = false;
  for (auto i = links_.begin(); i != links_.end();) {
    const auto kept = wanted.find(i->first);
    if (kept == wanted.end() && HasKey(i->second) && exchange_.Needs(i->second.id, now)) {
      keeps_ = true;
      ++i;
      continue;
    }
    const bool same = kept != wanted.end() && kept->second.name == i->second.name;
    if (same && kept->second.key == i->second.server_key) {
      ++i;
      continue;
    }
    HangUp(i->second);
    if (same) {    // another key, the same peer
      i->second.server_key = kept->second.key;
      Dial(i->second, now);
      ++i;
      continue;
    }
    exchange_.RemoveLink(i->second.id);
    by_id_.erase(i->second.id);
    i = links_.erase(i);
  }
}

void PeerLinks::Reconcile(const Resolver& resolver, Instant now) {
  const std::map<std::string, Wanted> wanted = WantedLinks(resolver);
  Drop(wanted, now);
  const std::size_t queue = options_.receive_bytes / (std::max<std::size_t>(wanted.size(), 1) * kFrameBytesMax);
  answers_.socket.set(zmq::sockopt::rcvhwm, std::clamp(static_cast<int>(queue), kWaitingMin, kWaitingMax));
  for (const auto& [text, one] : wanted) {
    if (links_.count(text) != 0) continue;
    Link& link = links_[text];
    link.id = ++last_link_;
    link.endpoint = one.endpoint;
    link.server_key = one.key;
    link.name = one.name;
    by_id_[link.id] = &link;
    Dial(link, now);
    exchange_.AddLink(link.id, one.address, now, link.name);
  }
}

void PeerLinks::Dial(Link& link, Instant now) {
  ++link.dials;
  link.dialed = now;
  link.broken = false;
  zmq::socket_t& socket = answers_.socket;
  socket.set(zmq::sockopt::connect_routing_id, RouteOf(link));
  socket.set(zmq::sockopt::ipv6, IsV6(link.endpoint));
  // An option of the next connection, not of the socket: every peer has its own.
  if (options_.keys) socket.set(zmq::sockopt::curve_serverkey, link.server_key);
  const std::string url = FormatBind(link.endpoint);
  if (zmq_connect(socket.handle(), url.c_str()) == 0) return exchange_.OnConnected(link.id);
  link.broken = true;    // out of memory or descriptors; it will be tried again
  Say(options_, LogLevel::kWarning, "{}: cannot connect: {}", url, zmq_strerror(errno));
}

// It is no error if libzmq has given the connection up before.
void PeerLinks::HangUp(Link& link) {
  zmq_disconnect(answers_.socket.handle(), FormatBind(link.endpoint).c_str());
}

void PeerLinks::Watch(std::vector<PeerStatus>& peers, Instant now) {
  std::map<LinkId, const PeerStatus*> status_of;
  for (const PeerStatus& peer : peers) status_of[peer.link] = &peer;
  for (auto& [text, link] : links_) {
    const auto found = status_of.find(link.id);
    DT_CHECK(found != status_of.end());
    Judge(link, *found->second, now);
  }
  peers.insert(peers.end(), dead_ends_.begin(), dead_ends_.end());
}

void PeerLinks::Judge(Link& link, const PeerStatus& peer, Instant now) {
  if (link.state != peer.state) {
    const bool good = peer.state == PeerState::kUp || peer.state == PeerState::kSelf;
    Say(options_, good ? LogLevel::kNotice : LogLevel::kWarning, "peer {}{}{} {}{}{}", peer.address,
        peer.name.empty() ? "" : " ", peer.name, Word(peer.state), peer.reason.empty() ? "" : ": ", peer.reason);
  }
  link.state = peer.state;
  if (link.state == PeerState::kSelf) return;
  if (link.state == PeerState::kUp) link.patience = kPatienceMin;
  const Duration waited = now - link.dialed;
  const Duration silence = std::max({link.patience, kSilenceMin, 2 * options_.exchange.period});
  const bool dead = link.state != PeerState::kUp && waited >= silence;
  if (!dead && (!link.broken || waited < link.patience)) return;
  link.patience = std::min(2 * link.patience, kPatienceMax);
  ++counts_.redials;
  HangUp(link);
  Dial(link, now);
}

}    // namespace dthrottle
