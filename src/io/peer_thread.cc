#include "io/peer_thread.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "io/clock.h"
#include "io/files.h"
#include "io/library_receive.h"
#include "io/peer_links.h"
#include "io/peer_server.h"
#include "io/signals.h"

namespace dthrottle {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kLingerMs = 200;
constexpr Duration kCopyEvery = milliseconds(100);
constexpr Duration kTurnEvery = milliseconds(250);    // at least, so that the copy is never old
constexpr Duration kBackloggedTurn = milliseconds(5);

// Reports that come in fast are heard some at a time: caches that have grown cold between two frames are half of what a
// frame costs. Not when they are few, nor for longer than a part of the period.
constexpr double kGatherFromBytes = 1 << 20;    // a second
constexpr Duration kGatherMax = milliseconds(50);
constexpr int kGatherPart = 50;

// What one connection may bring without a whole message coming out: all that may wait and one message under way, twice,
// since a frame that arrives in small pieces counts for more than its length (io/library_receive).
constexpr std::size_t kIncompleteBytesMax = 2 * (kWaitingMax + 1) * std::size_t{kWireBytesMax};
constexpr Duration kTrimAfter = seconds(1);
constexpr std::size_t kCapacityRingItems = 64;
constexpr Duration kLookPatience = milliseconds(20), kLookAgain = std::chrono::microseconds(200);
constexpr std::string_view kCapacityStem = kCapacityFramePrefix.substr(0, 3);    // of any version
constexpr std::uint64_t kCapacityIncarnationsMax = std::uint64_t{1} << 47;       // the exchange has 48 bits for them
constexpr std::size_t kStateFileBytesMax = kCapacityStateBytesMax + 64;

zmq::pollitem_t ItemOf(const pollfd& lookup) {
  return {nullptr, lookup.fd,
          static_cast<short>(((lookup.events & POLLIN) != 0 ? ZMQ_POLLIN : 0) |
                             ((lookup.events & POLLOUT) != 0 ? ZMQ_POLLOUT : 0)),
          0};
}

pollfd ReadyOf(const zmq::pollitem_t& item) {
  return {item.fd, 0,
          static_cast<short>(((item.revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0 ? POLLIN : 0) |
                             ((item.revents & ZMQ_POLLOUT) != 0 ? POLLOUT : 0))};
}

}    // namespace

struct PeerThread::Impl final : Transport, CapacityTransport {
  explicit Impl(Options o)
      : options(std::move(o)),
        to_peers(options.ring_items),
        from_peers(options.heard_items),
        resolver(options.resolver, Prng(options.seed ^ 0x7265736f6c7665)),
        exchange(options.exchange, to_peers, from_peers, *this, Prng(options.seed), Now()),
        server(options, context, counts),
        links(options, context, exchange, counts),
        wake_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    DT_CHECK(wake_fd >= 0);
    DT_CHECK(options.bind.enabled());
  }
  ~Impl() { ::close(wake_fd); }

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
  void OnRequests();
  void OnAnswers();
  bool OnTenantFrame(LinkId link, const Route& route, std::string_view frame);
  void Watch();

  Options options;    // the thread's own once it runs; keys and names change
  ToPeersRing to_peers;
  FromPeersRing from_peers;

  zmq::context_t context{1};    // the only one of the process: ends of contexts with CURVE get in each other's way
  Resolver resolver;
  Exchange exchange;
  mutable std::mutex capacity_mutex;    // others only look
  std::unique_ptr<CapacityExchange> capacity;
  DividingRings rings{kCapacityRingItems};
  std::vector<LinkId> up;    // links to peers that hear, when that was looked at last
  Instant now{}, copied{};
  Instant trim_at = Instant::max();    // when to give freed memory back
  Instant hear_at{};                   // when to take the next reports off the wire
  Duration gather{};                   // how long to let them gather
  std::uint64_t gathered_bytes = 0;    // of ExchangeCounts::received_bytes, when `gather` was decided on
  PeerThreadCounts counts;
  PeerServer server;
  PeerLinks links;

  std::thread thread;
  const int wake_fd;
  std::atomic<bool> stopping{false};

  // The mailbox, and the copy for people.
  std::mutex mutex;
  std::optional<AuthorizedKeys> new_authorized;
  std::optional<std::vector<std::string>> new_connect;
  std::optional<PeerCeilings> new_ceilings;
  std::optional<std::optional<CapacityOptions>> new_capacity;
  std::vector<PeerStatus> peers_copy;
  ExchangeCounts exchange_copy;
  PeerThreadCounts counts_copy;
  CapacityCounts capacity_copy;
};

// ---- Transport ----

void PeerThread::Impl::Ask(LinkId link, const Frame& frame) {
  links.Ask(link, frame);
}

void PeerThread::Impl::Answer(const Route& route, const Frame& frame) {
  if (!server.Send(route, frame)) ++counts.unsent;
}

// Between two bindings there is no connection, and its owner will say hello again.
bool PeerThread::Impl::Publish(const Route& route, const Frame& frame) {
  if (!server.open()) return false;
  if (server.Send(route, frame)) return true;
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
  if (const LinkId link = links.Named(peer); link != 0) Ask(link, std::make_shared<std::string>(frame));
}

void PeerThread::Impl::Save(std::string_view state) {
  const std::string& path = options.capacity->state_file;
  if (!path.empty() && ReplaceFile(path, state)) return;
  if (counts.unsaved++ == 0) Say(options, LogLevel::kWarning, "capacity: cannot write {}", path);
}

// Without keys nothing is proven, and anybody who can connect is believed, as with reports.
void PeerThread::Impl::OnCapacityFrame(std::string_view proven, std::string_view frame) {
  if (options.keys && proven.empty()) return void(++counts.malformed);
  const std::lock_guard lock(capacity_mutex);
  if (capacity) capacity->OnMessage(proven, frame, now);
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
    if (resolver.TakeChanged()) links.Reconcile(resolver, now);
    if (now >= server.bind_at()) server.Rebind(now);
    next = std::min(
        {next, server.bind_at(), exchange.Tick(now), now + (exchange.backlogged() ? kBackloggedTurn : kTurnEvery)});
    next = std::min(next, TickCapacity());
    for (Tenant* const tenant : options.tenants) next = std::min(next, tenant->Tick(up, exchange.wire(), now));
    if ((!from_peers.empty() || !rings.from_capacity.empty()) && options.wake) options.wake();
    if (now - copied >= kCopyEvery) Watch();
    Poll(next);
  }
  // What the limiter has handed over goes out still; bounded, because it may go on pushing.
  for (std::size_t i = 0; !to_peers.empty() && i <= options.ring_items; ++i) exchange.Tick(Now());
  exchange.Tick(Now());
}

void PeerThread::Impl::Close() {
  server.Close(kLingerMs);
  links.Close();
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
  // To an owner, reports come as requests.
  watch(kRequests, server.requests().socket, room || options.exchange.owners == nullptr);
  watch(kAnswers, links.answers().socket, hear);
  watch(kConnections, links.connections(), true);
  watch(kZap, server.zap(), true);
  for (std::size_t i = 0; i < lookups.size(); ++i) items[kFixed + i] = ItemOf(lookups[i]);
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
    if (items[kFixed + i].revents != 0) ready.push_back(ReadyOf(items[kFixed + i]));
  }
  if (!ready.empty()) resolver.Process(ready, now);
  if (items[kZap].revents != 0) server.OnZapRequest(now);
  if (items[kConnections].revents != 0) links.OnConnections(now);
  if (items[kRequests].revents != 0) OnRequests();
  if (items[kAnswers].revents != 0) OnAnswers();
}

void PeerThread::Impl::OnRequests() {
  Inbox& inbox = server.requests();
  for (int parts = kPartsPerTurn; ReadMessage(inbox, parts, counts.malformed);) {
    const char* const identity = options.keys ? zmq_msg_gets(inbox.body.handle(), "User-Id") : nullptr;
    const std::string_view proven = identity != nullptr ? identity : "", frame = inbox.body.to_string_view();
    if (frame.starts_with(kCapacityStem)) {
      OnCapacityFrame(proven, frame);
    } else if ((options.keys && proven.empty()) || !OnTenantFrame(0, inbox.route, frame)) {
      exchange.OnRequest(inbox.route, proven, frame, now);
    }
    if (options.exchange.owners && exchange.backlogged()) return;
  }
}

void PeerThread::Impl::OnAnswers() {
  int parts = kPartsPerTurn;
  while (ReadMessage(links.answers(), parts, counts.malformed)) {
    // A frame of an earlier dial is of a connection that is over, perhaps to a host with another key.
    if (const LinkId link = links.Answering(); link != 0) {
      const std::string_view frame = links.answers().body.to_string_view();
      if (!OnTenantFrame(link, {}, frame)) exchange.OnAnswer(link, frame, now);
    }
    if (exchange.backlogged()) return;
  }
  if (parts > 0) hear_at = now + gather;    // all of it
}

bool PeerThread::Impl::OnTenantFrame(LinkId link, const Route& route, std::string_view frame) {
  for (Tenant* const tenant : options.tenants) {
    if (!frame.starts_with(tenant->stem())) continue;
    tenant->OnFrame(link, route, frame, exchange.wire(), now);
    return true;
  }
  return false;
}

void PeerThread::Impl::TakeMail() {
  std::optional<AuthorizedKeys> authorized;
  std::optional<std::vector<std::string>> connect;
  std::optional<PeerCeilings> ceilings;
  std::optional<std::optional<CapacityOptions>> divide;
  {
    const std::lock_guard lock(mutex);
    authorized.swap(new_authorized);
    connect.swap(new_connect);
    ceilings.swap(new_ceilings);
    divide.swap(new_capacity);
  }
  if (divide) {
    const std::lock_guard lock(capacity_mutex);
    options.capacity = std::move(*divide);
    StartCapacity();
  }
  if (connect) resolver.SetEntries(*connect, now);
  if (ceilings) exchange.SetCeilings(*ceilings);
  if (!authorized || !options.keys) return;
  const bool removed =
      std::any_of(options.authorized.names.begin(), options.authorized.names.end(), [&](const auto& old) {
        const std::string* const name = authorized->NameOf(old.first);
        return name == nullptr || *name != old.second;
      });
  options.authorized = std::move(*authorized);
  links.Reconcile(resolver, now);
  if (removed) server.Restart(now);
}

// Looks at how the links are doing, and copies it for the other threads.
void PeerThread::Impl::Watch() {
  const ExchangeCounts exchange_counts = exchange.Counts();
  const double bytes = static_cast<double>(exchange_counts.received_bytes - gathered_bytes);
  gather = bytes >= kGatherFromBytes * Seconds(now - copied)
               ? std::min(kGatherMax, options.exchange.period / kGatherPart)
               : Duration();
  gathered_bytes = exchange_counts.received_bytes;
  copied = now;
  std::vector<PeerStatus> peers = exchange.Peers(now);
  links.Watch(peers, now);
  up.clear();
  for (const PeerStatus& peer : peers) {
    if (peer.state == PeerState::kUp && peer.link != 0) up.push_back(peer.link);
  }
  if (const std::uint64_t endless = LibraryReceivesCut() - counts.endless; endless != 0) {
    counts.endless += endless;
    trim_at = std::min(trim_at, now + kTrimAfter);
    Say(options, LogLevel::kWarning,
        "cut {} connections between hosts: each brought more than {} bytes without a whole message", endless,
        kIncompleteBytesMax);
  }
  if (now >= trim_at) {    // libzmq has freed the parts; the allocator would keep them for the process
    trim_at = Instant::max();
    malloc_trim(0);
  }
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
    BoundLibraryReceives(kIncompleteBytesMax);
    impl_->server.Open();
    impl_->links.Open();
  } catch (const zmq::error_t& error) {    // memory or descriptors are short
    return Fail(fmt::format("cannot open sockets to peers: {}", error.what()));
  }
  std::string why;
  if (!impl_->server.Bind(why)) return Fail(std::move(why));
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

bool PeerThread::Drain() {
  Impl& i = *impl_;
  const Instant now = Now();
  if (i.capacity) i.rings.Drain(*i.capacity, now);
  return i.exchange.Drain(now) && i.rings.from_capacity.empty();
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

void PeerThread::SetCeilings(const PeerCeilings& ceilings) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->new_ceilings = ceilings;
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
