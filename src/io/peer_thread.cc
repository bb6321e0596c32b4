#include "io/peer_thread.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "config/values.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kZapAddress[] = "inproc://zeromq.zap.01";
constexpr char kZapDomain[] = "dthrottle";

constexpr int kPartsPerTurn = 128;    // read from one socket before the others get their turn
constexpr int kLingerMs = 200;
constexpr int kRequestsMax = 64;    // waiting for one peer
constexpr Duration kCopyEvery = milliseconds(100);
constexpr Duration kTurnEvery = milliseconds(250);    // at least, so that the copy is never old
constexpr Duration kBackloggedTurn = milliseconds(5);
constexpr Duration kBindRetry = milliseconds(5), kBindSlow = seconds(1);

// Reports that come in fast are heard some at a time: caches that have grown cold between two frames are half of what a
// frame costs. Not when they are few, nor for longer than a part of the period.
constexpr double kGatherFromBytes = 1 << 20;    // a second
constexpr Duration kGatherMax = milliseconds(50);
constexpr int kGatherPart = 50;

constexpr Duration kPatienceMin = seconds(1), kSilenceMin = seconds(5), kPatienceMax = seconds(15);
constexpr Duration kSayEvery = seconds(10);

// Frames of the CapacityExchange have the name of their sender behind them, and a byte that says how long it is.
constexpr std::size_t kSignedBytesMax = kHostNameBytesMax + 1;
// Frames grow by a nonce and a code when they are encrypted.
constexpr std::int64_t kWireBytesMax =
    static_cast<std::int64_t>(std::max(kFrameBytesMax, kCapacityFrameBytesMax + kSignedBytesMax)) + 64;
constexpr std::size_t kCapacityRingItems = 64;
constexpr Duration kLookPatience = milliseconds(20), kLookAgain = std::chrono::microseconds(200);
constexpr std::string_view kCapacityStem = kCapacityFramePrefix.substr(0, 3);    // of any version
constexpr std::uint64_t kCapacityIncarnationsMax = std::uint64_t{1} << 47;       // the exchange has 48 bits for them
constexpr std::size_t kStateFileBytesMax = kCapacityStateBytesMax + 64;
constexpr char kMonitorAddress[] = "inproc://dthrottle.links";

// One of the sockets we read. A message may be cut by the end of a turn: `part` goes on in the next.
struct Inbox {
  Inbox() = default;
  Inbox(zmq::socket_t s, std::size_t parts_before) : socket(std::move(s)), envelope(parts_before) {}

  zmq::socket_t socket;
  std::size_t envelope = 0;    // parts before the body
  std::size_t part = 0;
  std::string route;
  zmq::message_t body;
};

// A connection to a peer.
struct PeerLink {
  LinkId id = 0;
  Endpoint endpoint;
  std::uint32_t dials = 0;
  std::string server_key;
  std::string name;       // that the key belongs to; empty without keys
  bool broken = false;    // the outgoing pipe is gone
  Instant dialed{};
  Duration patience = kPatienceMin;    // until it is dialed again
  PeerState state = PeerState::kConnecting;
};

// The name of a link on ROUTER out. Every dial has a name of its own: libzmq aborts if a name comes back before the
// connection that had it is quite gone.
std::string RouteOf(const PeerLink& link) {
  std::string route(1 + 2 * sizeof(std::uint32_t), 'L');
  std::memcpy(route.data() + 1, &link.id, sizeof link.id);
  std::memcpy(route.data() + 1 + sizeof link.id, &link.dials, sizeof link.dials);
  return route;
}

LinkId LinkOf(const std::string& route) {
  LinkId id = 0;
  if (route.size() == 1 + 2 * sizeof(std::uint32_t)) std::memcpy(&id, route.data() + 1, sizeof id);
  return id;
}

bool IsV6(const Endpoint& endpoint) {
  return endpoint.host.find(':') != std::string::npos;
}

zmq::message_t MessageOf(const Frame& frame) {
  // Subscribers' queues share the bytes; the last one to send them lets go, in libzmq's thread.
  return {const_cast<char*>(frame->data()), frame->size(), [](void*, void* held) { delete static_cast<Frame*>(held); },
          new Frame(frame)};
}

bool SendPart(zmq::socket_t& socket, zmq::message_t& part, bool more) {
  return zmq_msg_send(part.handle(), socket.handle(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool SendTo(zmq::socket_t& router, std::string_view route, const Frame& frame) {
  zmq::message_t head(route.data(), route.size()), body = MessageOf(frame);
  return SendPart(router, head, true) && SendPart(router, body, false);
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

struct PeerThread::Impl final : Transport, CapacityTransport {
  explicit Impl(Options o)
      : options(std::move(o)),
        to_peers(options.ring_items),
        from_peers(options.heard_items),
        resolver(options.resolver, Prng(options.seed ^ 0x7265736f6c7665)),
        exchange(options.exchange, to_peers, from_peers, *this, Prng(options.seed), Now()),
        wake_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    DT_CHECK(wake_fd >= 0);
    DT_CHECK(options.bind.enabled());
  }
  ~Impl() { ::close(wake_fd); }

  // Sockets
  zmq::socket_t Make(zmq::socket_type type, std::int64_t bytes_max);
  void ServeCurve(zmq::socket_t& socket);
  void MakeServer();
  bool BindServer(std::string& why);
  void CloseServer();
  void Open();

  // Transport
  void Ask(LinkId link, const Frame& frame) override;
  void Answer(const Route& route, const Frame& frame) override;
  bool Publish(const Route& route, const Frame& frame) override;

  // CapacityTransport
  void Send(std::string_view peer, std::string_view frame) override;
  void Save(std::string_view state) override;

  // Capacity
  void StartCapacity();
  Instant TickCapacity();
  void OnCapacityFrame(std::string_view proven, std::string_view frame);

  // The thread
  void Run();
  void Close();
  void Poll(Instant until);
  void TakeMail();
  template <class Deliver>
  bool Drain(Inbox& inbox, Deliver deliver);
  void OnAnswer(zmq::message_t& body);
  void OnConnections();
  void OnZapRequest();
  void Rebind();

  // Links
  const std::string* KeyFor(const Resolver::Address& address, std::string& why) const;
  void Reconcile();
  void Dial(PeerLink& link);
  void HangUp(PeerLink& link);
  void Watch();

  template <class... Args>
  void Say(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (options.log) options.log(level, fmt::format(format, std::forward<Args>(args)...));
  }

  Options options;    // the thread's own once it runs; keys and names change
  ToPeersRing to_peers;
  FromPeersRing from_peers;

  zmq::context_t context{1};    // the only one of the process: ends of contexts with CURVE get in each other's way
  Inbox requests, answers;
  zmq::socket_t connections, zap;
  Instant bind_at = Instant::max();    // when to try to open the port; max: it is

  Resolver resolver;
  Exchange exchange;
  mutable std::mutex capacity_mutex;    // others only look
  std::unique_ptr<CapacityExchange> capacity;
  DividingRings rings{kCapacityRingItems};
  std::map<std::string, LinkId, std::less<>> by_name;    // links, by what their hosts are called
  std::map<std::string, PeerLink> links;                 // by "10.0.0.2:7314"
  std::unordered_map<LinkId, PeerLink*> by_id;
  LinkId last_link = 0;
  std::vector<PeerStatus> dead_ends;    // addresses and entries that lead to no link
  Instant now{}, copied{}, said{}, bind_complaint{};
  Instant hear_at{};                   // when to take the next reports off the wire
  Duration gather{};                   // how long to let them gather
  std::uint64_t gathered_bytes = 0;    // of ExchangeCounts::received_bytes, when `gather` was decided on
  std::uint64_t unsaid = 0;
  PeerThreadCounts counts;

  std::thread thread;
  const int wake_fd;
  std::atomic<bool> stopping{false};

  // The mailbox, and the copy for people.
  std::mutex mutex;
  std::optional<AuthorizedKeys> new_authorized;
  std::optional<std::vector<std::string>> new_connect;
  std::optional<std::optional<CapacityOptions>> new_capacity;
  std::vector<PeerStatus> peers_copy;
  ExchangeCounts exchange_copy;
  PeerThreadCounts counts_copy;
  CapacityCounts capacity_copy;
};

// ---- Sockets ----

zmq::socket_t PeerThread::Impl::Make(zmq::socket_type type, std::int64_t bytes_max) {
  zmq::socket_t s(context, type);
  s.set(zmq::sockopt::linger, 0);
  s.set(zmq::sockopt::maxmsgsize, bytes_max);
  // A connection that has died is noticed within about 8 s, whether something is under way on it or not. Heartbeats of
  // ZMTP would be the obvious way; a slow reader with heartbeats aborts the process (_input_stopped).
  s.set(zmq::sockopt::tcp_keepalive, 1);
  s.set(zmq::sockopt::tcp_keepalive_idle, 5);
  s.set(zmq::sockopt::tcp_keepalive_intvl, 2);
  s.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  s.set(zmq::sockopt::tcp_maxrt, 8000);
  s.set(zmq::sockopt::connect_timeout, 2000);
  s.set(zmq::sockopt::handshake_ivl, 5000);
  s.set(zmq::sockopt::reconnect_ivl, 100);    // libzmq adds chance by itself
  s.set(zmq::sockopt::reconnect_ivl_max, 2000);
  s.set(zmq::sockopt::backlog, 1024);
  return s;
}

void PeerThread::Impl::ServeCurve(zmq::socket_t& socket) {
  if (!options.keys) return;
  socket.set(zmq::sockopt::curve_server, 1);
  socket.set(zmq::sockopt::curve_secretkey, options.keys->secret_key);
  socket.set(zmq::sockopt::zap_domain, kZapDomain);
}

void PeerThread::Impl::MakeServer() {
  requests = Inbox(Make(zmq::socket_type::router, kWireBytesMax), 1);
  zmq::socket_t& socket = requests.socket;
  // A send says when the connection is gone, or its queue is full: a slow subscriber misses reports and asks for them.
  socket.set(zmq::sockopt::router_mandatory, 1);
  socket.set(zmq::sockopt::sndhwm,
             static_cast<int>(std::clamp<std::size_t>(options.send_bytes / kFrameBytesMax, 16, 65536)));
  socket.set(zmq::sockopt::ipv6, IsV6(options.bind));
  ServeCurve(socket);
}

bool PeerThread::Impl::BindServer(std::string& why) {
  const std::string url = FormatBind(options.bind);
  if (zmq_bind(requests.socket.handle(), url.c_str()) == 0) return true;
  why = fmt::format("{}: cannot listen: {}", url, zmq_strerror(errno));
  return false;
}

void PeerThread::Impl::CloseServer() {
  requests.socket.close();
}

void PeerThread::Impl::Open() {
  if (options.keys) {
    // Before any server: a handshake finds nobody to ask otherwise and fails.
    zap = zmq::socket_t(context, zmq::socket_type::rep);
    zap.set(zmq::sockopt::linger, 0);
    zap.bind(kZapAddress);
  }
  MakeServer();
  // One ROUTER for all links, with a name given to each connection, rather than a DEALER for each: polling 200
  // DEALERs takes 140 us a turn and this 1 us. It notices (EHOSTUNREACH) when libzmq has given a connection up, and a
  // dead peer costs at most kRequestsMax messages, the same as with DEALERs.
  answers = Inbox(Make(zmq::socket_type::router, kWireBytesMax), 1);
  answers.socket.set(zmq::sockopt::router_mandatory, 1);
  answers.socket.set(zmq::sockopt::sndhwm, kRequestsMax);
  if (options.keys) {
    answers.socket.set(zmq::sockopt::curve_publickey, options.keys->public_key);
    answers.socket.set(zmq::sockopt::curve_secretkey, options.keys->secret_key);
  }
  if (zmq_socket_monitor(answers.socket.handle(), kMonitorAddress, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0) {
    throw zmq::error_t();
  }
  connections = zmq::socket_t(context, zmq::socket_type::pair);
  connections.set(zmq::sockopt::linger, 0);
  connections.connect(kMonitorAddress);
}

// ---- Transport ----

void PeerThread::Impl::Ask(LinkId id, const Frame& frame) {
  const auto found = by_id.find(id);
  if (found == by_id.end()) return;
  PeerLink& link = *found->second;
  if (SendTo(answers.socket, RouteOf(link), frame)) return;
  ++counts.unsent;
  link.broken = link.broken || errno == EHOSTUNREACH;
}

void PeerThread::Impl::Answer(const Route& route, const Frame& frame) {
  if (requests.socket.handle() == nullptr || !SendTo(requests.socket, route, frame)) ++counts.unsent;
}

// Between two bindings there is no connection, and whoever had one will say hello again.
bool PeerThread::Impl::Publish(const Route& route, const Frame& frame) {
  if (requests.socket.handle() == nullptr) return false;
  if (SendTo(requests.socket, route, frame)) return true;
  ++counts.unsent;
  return errno != EHOSTUNREACH;
}

// ---- Capacity ----

void PeerThread::Impl::StartCapacity() {
  if (!options.capacity) return capacity.reset();
  if (capacity) return capacity->SetSettings(options.capacity->settings, now);
  CapacityExchange::Options start;
  start.name = options.exchange.name;
  start.incarnation = NextIncarnation(options.capacity->state_file, milliseconds(1), kCapacityIncarnationsMax);
  if (const std::string& path = options.capacity->state_file; !path.empty()) {
    if (const auto saved = ReadRegularFile(path, kStateFileBytesMax)) start.saved = *saved;
  }
  start.life = std::exchange(options.capacity_life, {});
  capacity = std::make_unique<CapacityExchange>(std::move(start), options.capacity->settings, *this,
                                                Prng(options.seed ^ 0x6361706163697479), now);
  rings.told = {};
}

void PeerThread::Impl::Send(std::string_view peer, std::string_view frame) {
  const auto link = by_name.find(peer);
  if (link == by_name.end()) return;
  const std::string& name = options.exchange.name;
  auto signed_frame = std::make_shared<std::string>(frame);
  *signed_frame += name;
  *signed_frame += static_cast<char>(name.size());
  Ask(link->second, signed_frame);
}

void PeerThread::Impl::Save(std::string_view state) {
  const std::string& path = options.capacity->state_file;
  if (!path.empty() && ReplaceFile(path, state)) return;
  if (counts.unsaved++ == 0) Say(LogLevel::kWarning, "capacity: cannot write {}", path);
}

// Without keys anybody who can connect is believed, as with reports.
void PeerThread::Impl::OnCapacityFrame(std::string_view proven, std::string_view frame) {
  const std::lock_guard lock(capacity_mutex);
  if (!capacity) return;
  const std::size_t bytes = static_cast<unsigned char>(frame.back());
  if (bytes == 0 || frame.size() < bytes + 1) return void(++counts.malformed);
  const std::string_view name = frame.substr(frame.size() - 1 - bytes, bytes);
  if (options.keys && name != proven) return void(++counts.malformed);
  capacity->OnMessage(name, frame.substr(0, frame.size() - 1 - bytes), now);
}

Instant PeerThread::Impl::TickCapacity() {
  const std::lock_guard lock(capacity_mutex);
  return rings.Turn(capacity.get(), now);
}

// ---- The thread ----

void PeerThread::Impl::Run() {
  now = Now();
  {
    const std::lock_guard lock(capacity_mutex);
    StartCapacity();
  }
  resolver.SetEntries(options.connect, now);
  while (!stopping.load(std::memory_order_acquire)) {
    now = Now();
    TakeMail();
    Instant next = resolver.Tick(now);
    if (resolver.TakeChanged()) Reconcile();
    if (now >= bind_at) Rebind();
    next = std::min({next, bind_at, exchange.Tick(now), now + (exchange.backlogged() ? kBackloggedTurn : kTurnEvery)});
    next = std::min(next, TickCapacity());
    if ((!from_peers.empty() || !rings.from_capacity.empty()) && options.wake) options.wake();
    if (now - copied >= kCopyEvery) Watch();
    Poll(next);
  }
  // What the limiter has handed over goes out still; bounded, because it may go on pushing.
  for (std::size_t i = 0; !to_peers.empty() && i <= options.ring_items; ++i) exchange.Tick(Now());
  exchange.Tick(Now());
}

void PeerThread::Impl::Close() {
  if (requests.socket.handle() != nullptr) requests.socket.set(zmq::sockopt::linger, kLingerMs);
  CloseServer();
  zmq_socket_monitor(answers.socket.handle(), nullptr, 0);
  connections.close();
  answers.socket.close();
  zap.close();
  context.close();    // waits for reports that linger
}

void PeerThread::Impl::Poll(Instant until) {
  enum { kWake, kRequests, kAnswers, kConnections, kZap, kFixed };
  const std::vector<pollfd> lookups = resolver.Descriptors();
  std::vector<zmq::pollitem_t> items(kFixed + lookups.size());
  items[kWake] = {nullptr, wake_fd, ZMQ_POLLIN, 0};
  // Where nothing is wanted, or there is no socket between two bindings, the place asks for nothing.
  const auto watch = [&](std::size_t place, zmq::socket_t& socket, bool wanted) {
    items[place] = wanted && socket.handle() != nullptr ? zmq::pollitem_t{socket.handle(), 0, ZMQ_POLLIN, 0}
                                                        : zmq::pollitem_t{nullptr, wake_fd, 0, 0};
  };
  const bool room = !exchange.backlogged(), hear = room && now >= hear_at;
  watch(kRequests, requests.socket, true);
  watch(kAnswers, answers.socket, hear);
  watch(kConnections, connections, true);
  watch(kZap, zap, true);
  for (std::size_t i = 0; i < lookups.size(); ++i) {
    items[kFixed + i] = {nullptr, lookups[i].fd,
                         static_cast<short>(((lookups[i].events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                                            ((lookups[i].events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0)),
                         0};
  }
  if (room && !hear) until = std::min(until, hear_at);
  const auto wait = std::chrono::ceil<milliseconds>(std::max(until - Now(), Duration(0)));
  if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(wait.count())) <= 0) return;
  now = Now();
  if (items[kWake].revents != 0) {
    eventfd_t value;
    eventfd_read(wake_fd, &value);
  }
  std::vector<pollfd> ready;
  for (std::size_t i = 0; i < lookups.size(); ++i) {
    const short events = items[kFixed + i].revents;
    if (events == 0) continue;
    ready.push_back({lookups[i].fd, 0,
                     static_cast<short>(((events & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                                        ((events & ZMQ_POLLOUT) != 0 ? POLLOUT : 0))});
  }
  if (!ready.empty()) resolver.Process(ready, now);
  if (items[kZap].revents != 0) OnZapRequest();
  if (items[kConnections].revents != 0) OnConnections();
  if (items[kRequests].revents != 0) {
    Drain(requests, [&](zmq::message_t& body) {
      const char* const identity = options.keys ? zmq_msg_gets(body.handle(), "User-Id") : nullptr;
      if (body.to_string_view().starts_with(kCapacityStem)) {
        return OnCapacityFrame(identity != nullptr ? identity : "", body.to_string_view());
      }
      exchange.OnRequest(requests.route, identity != nullptr ? identity : "", body.to_string_view(), now);
    });
  }
  if (items[kAnswers].revents != 0 && Drain(answers, [&](zmq::message_t& body) { OnAnswer(body); })) {
    hear_at = now + gather;
  }
}

// A frame of an earlier dial is of a connection that is over, perhaps to a host with another key.
void PeerThread::Impl::OnAnswer(zmq::message_t& body) {
  const auto found = by_id.find(LinkOf(answers.route));
  if (found == by_id.end() || RouteOf(*found->second) != answers.route) return;
  exchange.OnAnswer(found->first, body.to_string_view(), now);
}

// libzmq connects anew by itself; the host there knows nothing of the connection before. An event is a number and a
// value, 16 and 32 bits, and then the address.
void PeerThread::Impl::OnConnections() {
  for (int i = 0; i < kPartsPerTurn; ++i) {
    zmq::message_t event, address;
    if (zmq_msg_recv(event.handle(), connections.handle(), ZMQ_DONTWAIT) < 0 || !event.more()) return;
    if (zmq_msg_recv(address.handle(), connections.handle(), ZMQ_DONTWAIT) < 0) return;
    const std::string_view url = address.to_string_view();
    for (const auto& [text, link] : links) {
      if (FormatBind(link.endpoint) == url) exchange.OnConnected(link.id, now);
    }
  }
}

void PeerThread::Impl::TakeMail() {
  std::optional<AuthorizedKeys> authorized;
  std::optional<std::vector<std::string>> connect;
  std::optional<std::optional<CapacityOptions>> divide;
  {
    const std::lock_guard lock(mutex);
    authorized.swap(new_authorized);
    connect.swap(new_connect);
    divide.swap(new_capacity);
  }
  if (divide) {
    const std::lock_guard lock(capacity_mutex);
    options.capacity = std::move(*divide);
    StartCapacity();
  }
  if (connect) resolver.SetEntries(*connect, now);
  if (!authorized || !options.keys) return;
  const bool removed =
      std::any_of(options.authorized.names.begin(), options.authorized.names.end(), [&](const auto& old) {
        const std::string* const name = authorized->NameOf(old.first);
        return name == nullptr || *name != old.second;
      });
  options.authorized = std::move(*authorized);
  Reconcile();
  if (!removed) return;
  // libzmq cannot end one connection of a socket, so all of them end.
  ++counts.rebinds;
  CloseServer();
  bind_at = now;
  bind_complaint = now + kBindSlow;
}

void PeerThread::Impl::Rebind() {
  std::string why;
  try {
    if (requests.socket.handle() == nullptr) MakeServer();
    if (BindServer(why)) {
      bind_at = Instant::max();
      return;
    }
  } catch (const zmq::error_t& error) {    // memory or descriptors are short
    why = error.what();
    CloseServer();
  }
  // The closed socket gives its port back in a thread of libzmq, soon.
  bind_at = now + kBindRetry;
  if (now < bind_complaint) return;
  bind_complaint = now + kSayEvery;
  Say(LogLevel::kWarning, "{}; trying again", why);
}

// Reads whole messages, at most a turn's worth; true if that was all. A message of more parts than ours have is read
// and dropped.
template <class Deliver>
bool PeerThread::Impl::Drain(Inbox& inbox, Deliver deliver) {
  for (int i = 0; i < kPartsPerTurn; ++i) {
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), inbox.socket.handle(), ZMQ_DONTWAIT) < 0) return true;
    const bool more = part.more();
    if (inbox.part < inbox.envelope) inbox.route = part.to_string_view();
    if (inbox.part == inbox.envelope) inbox.body = std::move(part);
    ++inbox.part;
    if (more) continue;
    if (inbox.part == inbox.envelope + 1) {
      deliver(inbox.body);
    } else {
      ++counts.malformed;
    }
    inbox.part = 0;
    if (exchange.backlogged() && &inbox != &requests) return false;
  }
  return false;
}

// RFC 27: version, request, domain, address, identity, mechanism, key in; version, request, status, text, user,
// metadata out. libzmq asks from its own thread, so that one thread can serve both sides.
void PeerThread::Impl::OnZapRequest() {
  for (int i = 0; i < kPartsPerTurn; ++i) {
    std::vector<zmq::message_t> parts;
    do {
      parts.emplace_back();
      if (zmq_msg_recv(parts.back().handle(), zap.handle(), ZMQ_DONTWAIT) < 0) return;
    } while (parts.back().more());
    DT_CHECK(parts.size() >= 6);
    const std::string* name = nullptr;
    char key[kKeyChars + 1] = "";
    if (parts.size() == 7 && parts[5].to_string_view() == "CURVE" && parts[6].size() == kKeyChars / 5 * 4) {
      zmq_z85_encode(key, parts[6].data<std::uint8_t>(), parts[6].size());
      name = options.authorized.NameOf(key);
    }
    const std::string_view user = name != nullptr ? std::string_view(*name) : "";
    const std::string_view reply[] = {"1.0",
                                      parts[1].to_string_view(),
                                      name != nullptr ? "200" : "400",
                                      name != nullptr ? "OK" : "not authorized",
                                      user,
                                      ""};
    for (std::size_t k = 0; k < std::size(reply); ++k) {
      zmq::message_t part(reply[k].data(), reply[k].size());
      SendPart(zap, part, k + 1 < std::size(reply));
    }
    ++(name != nullptr ? counts.allowed : counts.denied);
    if (name != nullptr) continue;
    ++unsaid;
    if (now - said < kSayEvery) continue;
    said = now;
    Say(LogLevel::kWarning, "turned away {} connections of keys that are not authorized, last {} from {}",
        std::exchange(unsaid, 0), key, parts[3].to_string_view());
  }
}

// ---- Links ----

const std::string* PeerThread::Impl::KeyFor(const Resolver::Address& address, std::string& why) const {
  static const std::string kNone;
  if (!options.keys) return &kNone;
  const std::string text = FormatEndpoint(address.endpoint);
  // A name can lead to several hosts, so what a key's own file says of the address comes first.
  const std::string* const at = options.authorized.NameAt(text);
  const std::string& name = at != nullptr ? *at : address.key_name;
  const std::string* const key = options.authorized.KeyOf(name);
  if (key == nullptr) {
    why = name.empty()
              ? fmt::format("no key is known for tcp://{}: add #NAME or an address line to its .pub file", text)
              : fmt::format("no key is known for tcp://{}: there is no {}.pub", text, name);
  }
  return key;
}

// Makes the links what the resolver and the keys say they should be.
void PeerThread::Impl::Reconcile() {
  struct Wanted {
    Endpoint endpoint;
    std::string key, name, address;
  };
  std::map<std::string, Wanted> wanted;
  dead_ends.clear();
  const auto dead_end = [&](const std::string& address, PeerState state, std::string reason) {
    PeerStatus status;
    status.address = address;
    status.state = state;
    status.reason = std::move(reason);
    status.last_heard = Duration(-1);
    dead_ends.push_back(std::move(status));
  };
  for (const Resolver::Address& address : resolver.Addresses()) {
    const std::string url = FormatBind(address.endpoint);
    const bool named = !address.entry.starts_with(url);
    std::string shown = named ? fmt::format("{} ({})", url, address.entry) : url, why;
    if (const std::string* const key = KeyFor(address, why)) {
      const std::string* const name = options.keys ? options.authorized.NameOf(*key) : nullptr;
      wanted[FormatEndpoint(address.endpoint)] = {address.endpoint, *key, name != nullptr ? *name : "",
                                                  std::move(shown)};
    } else {
      dead_end(shown, PeerState::kRefused, why);
    }
  }
  for (const Resolver::Failure& failure : resolver.Failures()) {
    if (failure.nothing_known) {
      dead_end(failure.entry, PeerState::kConnecting, failure.reason);
    } else {
      Say(LogLevel::kWarning, "{}: {}; keeping the addresses of before", failure.entry, failure.reason);
    }
  }
  for (const PeerStatus& status : dead_ends) Say(LogLevel::kWarning, "{}: {}", status.address, status.reason);

  for (auto i = links.begin(); i != links.end();) {
    const auto kept = wanted.find(i->first);
    const bool same = kept != wanted.end() && kept->second.name == i->second.name;
    if (same && kept->second.key == i->second.server_key) {
      ++i;
      continue;
    }
    HangUp(i->second);
    if (same) {    // another key, the same peer
      i->second.server_key = kept->second.key;
      Dial(i->second);
      ++i;
      continue;
    }
    exchange.RemoveLink(i->second.id, now);
    by_id.erase(i->second.id);
    i = links.erase(i);
  }
  const std::size_t queue = options.receive_bytes / (std::max<std::size_t>(wanted.size(), 1) * kFrameBytesMax);
  answers.socket.set(zmq::sockopt::rcvhwm, static_cast<int>(std::clamp<std::size_t>(queue, 4, 256)));
  for (auto& [text, one] : wanted) {
    if (links.count(text) != 0) continue;
    PeerLink& link = links[text];
    link.id = ++last_link;
    link.endpoint = one.endpoint;
    link.server_key = one.key;
    link.name = one.name;
    by_id[link.id] = &link;
    Dial(link);
    exchange.AddLink(link.id, one.address, now, link.name);
  }
}

void PeerThread::Impl::Dial(PeerLink& link) {
  ++link.dials;
  link.dialed = now;
  link.broken = false;
  zmq::socket_t& socket = answers.socket;
  socket.set(zmq::sockopt::connect_routing_id, RouteOf(link));
  socket.set(zmq::sockopt::ipv6, IsV6(link.endpoint));
  // An option of the next connection, not of the socket: every peer has its own.
  if (options.keys) socket.set(zmq::sockopt::curve_serverkey, link.server_key);
  const std::string url = FormatBind(link.endpoint);
  if (zmq_connect(socket.handle(), url.c_str()) == 0) return exchange.OnConnected(link.id, now);
  link.broken = true;    // out of memory or descriptors; it will be tried again
  Say(LogLevel::kWarning, "{}: cannot connect: {}", url, zmq_strerror(errno));
}

// It is no error if libzmq has given the connection up before.
void PeerThread::Impl::HangUp(PeerLink& link) {
  zmq_disconnect(answers.socket.handle(), FormatBind(link.endpoint).c_str());
}

// Looks at how the links are doing, and copies it for the other threads.
//
// libzmq connects anew by itself when a connection breaks, but gives up for good when a handshake fails: the other side
// had other keys for a moment, or something else listened on its port. So a link that does not come up is dialed again.
void PeerThread::Impl::Watch() {
  const ExchangeCounts exchange_counts = exchange.Counts();
  const double bytes = static_cast<double>(exchange_counts.received_bytes - gathered_bytes);
  gather = bytes >= kGatherFromBytes * Seconds(now - copied)
               ? std::min(kGatherMax, options.exchange.period / kGatherPart)
               : Duration();
  gathered_bytes = exchange_counts.received_bytes;
  copied = now;
  std::vector<PeerStatus> peers = exchange.Peers(now);
  std::map<LinkId, const PeerStatus*> status_of;
  by_name.clear();
  for (const PeerStatus& peer : peers) {
    status_of[peer.link] = &peer;
    if (!peer.name.empty() && peer.state != PeerState::kSelf) by_name[peer.name] = peer.link;
  }
  for (auto& [text, link] : links) {
    const auto found = status_of.find(link.id);
    DT_CHECK(found != status_of.end());
    const PeerStatus& peer = *found->second;
    if (link.state != peer.state) {
      const bool good = peer.state == PeerState::kUp || peer.state == PeerState::kSelf;
      Say(good ? LogLevel::kNotice : LogLevel::kWarning, "peer {}{}{} {}{}{}", peer.address,
          peer.name.empty() ? "" : " ", peer.name, Word(peer.state), peer.reason.empty() ? "" : ": ", peer.reason);
    }
    link.state = peer.state;
    if (link.state == PeerState::kSelf) continue;
    if (link.state == PeerState::kUp) link.patience = kPatienceMin;
    const Duration waited = now - link.dialed;
    const Duration silence = std::max({link.patience, kSilenceMin, 2 * options.exchange.period});
    const bool dead = link.state != PeerState::kUp && waited >= silence;
    if (!dead && (!link.broken || waited < link.patience)) continue;
    link.patience = std::min(2 * link.patience, kPatienceMax);
    ++counts.redials;
    HangUp(link);
    Dial(link);
  }
  peers.insert(peers.end(), dead_ends.begin(), dead_ends.end());
  counts.lookups = resolver.counts().lookups;
  counts.lookups_failed = resolver.counts().failed;
  const CapacityCounts capacity_counts = capacity ? capacity->Counts(now) : CapacityCounts();
  const std::lock_guard lock(mutex);
  peers_copy = std::move(peers);
  exchange_copy = exchange_counts;
  counts_copy = counts;
  capacity_copy = capacity_counts;
}

// ---- The other side ----

PeerThread::PeerThread(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

PeerThread::~PeerThread() {
  Stop();
}

Result<void> PeerThread::Start() {
  DT_CHECK(!impl_->thread.joinable());
  if (impl_->options.bind.port == 0) return Fail(FormatBind(impl_->options.bind) + ": the port must be 1 to 65535");
  const SignalsBlocked blocked;
  try {
    impl_->Open();
  } catch (const zmq::error_t& error) {    // memory or descriptors are short
    return Fail(fmt::format("cannot open sockets to peers: {}", error.what()));
  }
  std::string why;
  if (!impl_->BindServer(why)) return Fail(std::move(why));
  // A socket may move to another thread behind a full fence, which the start of the thread is.
  impl_->thread = std::thread([impl = impl_.get()] {
    impl->Run();
    impl->Close();
  });
  return {};
}

void PeerThread::Stop() {
  if (impl_->thread.joinable()) {
    impl_->stopping.store(true, std::memory_order_release);
    Notify();
    impl_->thread.join();
  }
}

bool PeerThread::resumed() const {
  return impl_->exchange.resumed();
}

bool PeerThread::Settle() {
  Impl& i = *impl_;
  const Instant now = Now();
  if (i.capacity) i.rings.Settle(*i.capacity, now);
  return i.exchange.Settle(now) && i.rings.from_capacity.empty();
}

std::string PeerThread::ExchangeLife() {
  return impl_->exchange.Life(Now());
}

std::string PeerThread::CapacityLife() {
  return impl_->capacity ? impl_->capacity->Life() : std::string();
}

ToPeersRing& PeerThread::to_peers() {
  return impl_->to_peers;
}

FromPeersRing& PeerThread::from_peers() {
  return impl_->from_peers;
}

void PeerThread::Notify() {
  eventfd_write(impl_->wake_fd, 1);
}

void PeerThread::ReloadKeys(AuthorizedKeys authorized) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_authorized = std::move(authorized);
  }
  Notify();
}

void PeerThread::SetConnect(std::vector<std::string> connect) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_connect = std::move(connect);
  }
  Notify();
}

void PeerThread::SetCapacity(std::optional<CapacityOptions> capacity) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_capacity = std::move(capacity);
  }
  Notify();
}

ToCapacityRing& PeerThread::to_capacity() {
  return impl_->rings.to_capacity;
}

FromCapacityRing& PeerThread::from_capacity() {
  return impl_->rings.from_capacity;
}

bool PeerThread::LookAtCapacity(const std::function<void(CapacityExchange&)>& look) const {
  // Tried and not waited for: the thread sanitizer of g++ 12 does not see the lock of a std::timed_mutex.
  std::unique_lock lock(impl_->capacity_mutex, std::try_to_lock);
  for (const Instant end = Now() + kLookPatience; !lock.owns_lock() && Now() < end; lock.try_lock()) {
    std::this_thread::sleep_for(kLookAgain);
  }
  if (!lock.owns_lock() || !impl_->capacity) return false;
  look(*impl_->capacity);
  return true;
}

CapacityCounts PeerThread::CapacityCountsNow() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->capacity_copy;
}

std::vector<PeerStatus> PeerThread::Peers() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->peers_copy;
}

ExchangeCounts PeerThread::Counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->exchange_copy;
}

PeerThreadCounts PeerThread::OwnCounts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts_copy;
}

}    // namespace dthrottle
